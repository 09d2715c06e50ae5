-- SPDX-License-Identifier: Apache-2.0
-- Sends requests out of a file, each as often as any other, in random order:
--
--   wrk … -s requests.lua URL -- FILE
--
-- The file holds for each request its length in decimal, a newline, and so many bytes. They are read once: wrk shares
-- two cores with what it measures, so a request must cost it as little as can be, and the same for every peer. For the
-- same reason there is no response(): it would make wrk hand each reply to Lua. Ends with one line of JSON.

local started = 0

function setup(thread)
  started = started + 1
  thread:set("number", started)
end

function init(args)
  local file = assert(io.open(args[1], "rb"))
  list, n = {}, 0
  while true do
    local length = file:read("*n")
    if not length then
      break
    end
    assert(file:read(1) == "\n", "a length and a newline")
    n = n + 1
    list[n] = assert(file:read(length))
    assert(#list[n] == length, "a request is cut off")
  end
  file:close()
  assert(n > 0, "no requests")
  math.randomseed(os.time() + 7919 * number)
end

function request()
  return list[math.random(n)]
end

function done(summary, latency, _)
  local e = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"seconds":%.6f,"bytes":%d,"status_errors":%d,"socket_errors":%d,"timeouts":%d,'
      .. '"p50_ms":%.3f,"p99_ms":%.3f,"max_ms":%.3f}\n',
    summary.requests, summary.duration / 1e6, summary.bytes, e.status, e.connect + e.read + e.write, e.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3))
end
