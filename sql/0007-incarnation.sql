-- What names an incarnation of the database beside what the server says of itself (src/db/epoch.h).

CREATE TABLE stillhere.incarnation (
    one   boolean NOT NULL PRIMARY KEY DEFAULT true CHECK (one),
    word  text NOT NULL DEFAULT '' CHECK (octet_length(word) <= 64),
    files text CHECK (octet_length(files) <= 64)
);
COMMENT ON TABLE stillhere.incarnation IS 'One row, a part of the epoch. A daemon that finds the past changed puts another word in; so may whoever restores.';
COMMENT ON COLUMN stillhere.incarnation.one IS 'There is one row.';
COMMENT ON COLUMN stillhere.incarnation.word IS 'Any word that was not there before begins a new epoch.';
COMMENT ON COLUMN stillhere.incarnation.files IS 'Which copy of the data directory the word was written in, where a role could see that; null: not known.';
INSERT INTO stillhere.incarnation DEFAULT VALUES;
