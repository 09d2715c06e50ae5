// SPDX-License-Identifier: Apache-2.0
// Hands every file of a corpus to the fuzz target that this is linked with. The inputs run one after the other in a
// child, so that one that crashes is counted and named, and the others have their turn all the same. An input that
// takes longer than a minute has hung.
//
//   fuzz_NAME [FILE|DIRECTORY…]     without arguments: $srcdir/tests/fuzz/corpus/NAME
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fuzz.h"

#define INPUT_MAX ((size_t)4 << 20)
#define INPUTS_MAX 20000
#define PATIENCE_S 60

/// Only some targets have one.
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc;
  (void)argv;
  return 0;
}

struct inputs {
  char *paths[INPUTS_MAX];
  size_t n;
};

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(2);
}

static void add(struct inputs *in, const char *path) {
  struct stat st;
  if (stat(path, &st) != 0)
    fail(path, strerror(errno));
  if (in->n == INPUTS_MAX)
    fail(path, "there are too many inputs");
  if (!S_ISDIR(st.st_mode)) {
    in->paths[in->n++] = strdup(path);
    return;
  }
  struct dirent **names;
  int n = scandir(path, &names, NULL, alphasort);
  if (n < 0)
    fail(path, strerror(errno));
  for (int i = 0; i < n; i++) {
    char child[PATH_MAX];
    if (names[i]->d_name[0] != '.' && snprintf(child, sizeof child, "%s/%s", path, names[i]->d_name) < PATH_MAX)
      add(in, child);
    free(names[i]);
  }
  free(names);
}

/// The corpus that goes with a program, by its name: fuzz_NAME.
static void add_own(struct inputs *in, const char *program) {
  const char *slash = strrchr(program, '/'), *srcdir = getenv("srcdir");
  const char *name = slash != NULL ? slash + 1 : program;
  char path[PATH_MAX];
  if (strncmp(name, "fuzz_", 5) == 0)
    name += 5;
  (void)snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", srcdir != NULL ? srcdir : ".", name);
  add(in, path);
}

static void run(const char *path) {
  FILE *file = fopen(path, "re");
  uint8_t *bytes = malloc(INPUT_MAX);
  if (file == NULL || bytes == NULL)
    fail(path, strerror(errno));
  size_t len = fread(bytes, 1, INPUT_MAX, file);
  if (ferror(file))
    fail(path, strerror(errno));
  (void)fclose(file);
  uint8_t *exact = realloc(bytes, len > 0 ? len : 1);
  (void)alarm(PATIENCE_S);
  (void)LLVMFuzzerTestOneInput(exact, len);
  (void)alarm(0);
  free(exact);
}

/// Runs the inputs from @a at on, in a child; @a at is shared with it and stays at the one that is running.
/// @return whether the child came to the end
static bool run_from(const struct inputs *in, volatile size_t *at, int *argc, char ***argv) {
  (void)fflush(NULL);
  pid_t pid = fork();
  if (pid < 0)
    fail("fork", strerror(errno));
  if (pid == 0) {
    (void)LLVMFuzzerInitialize(argc, argv);
    for (; *at < in->n; ++*at)
      run(in->paths[*at]);
    exit(0);
  }
  int status;
  if (waitpid(pid, &status, 0) != pid)
    fail("waitpid", strerror(errno));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
    return true;
  const char *input = *at < in->n ? in->paths[*at] : "the end (a leak?)";
  if (WIFSIGNALED(status))
    printf("FAIL %s: signal %d%s\n", input, WTERMSIG(status), WTERMSIG(status) == SIGALRM ? ", it hung" : "");
  else
    printf("FAIL %s: exit status %d\n", input, WEXITSTATUS(status));
  return false;
}

int main(int argc, char **argv) {
  static struct inputs in;
  for (int i = 1; i < argc; i++)
    add(&in, argv[i]);
  if (argc == 1)
    add_own(&in, argv[0]);
  if (in.n == 0)
    fail(argv[0], "there is no input");
  volatile size_t *at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED)
    fail("mmap", strerror(errno));
  size_t failed = 0;
  for (*at = 0; *at < in.n && !run_from(&in, at, &argc, &argv); ++*at)
    failed++;
  printf("%zu passed, %zu failed\n", in.n > failed ? in.n - failed : 0, failed);
  for (size_t i = 0; i < in.n; i++)
    free(in.paths[i]);
  return failed > 0;
}
