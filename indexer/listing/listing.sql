-- The database of one base: what the Hub listed for it, how far its crawl came, and the answers stored for it.
--
-- The last column of every table is a checksum of the row's other columns. Rows are in the order of their first
-- appearance. Times are ISO 8601 in UTC.

CREATE TABLE ids (
  id TEXT PRIMARY KEY,  -- an id of the base on the Hub, the canonical one first
  checksum TEXT NOT NULL
);
CREATE TABLE facts (
  name TEXT PRIMARY KEY,  -- licence, licence_name, licence_link: of the base, as its card gives them
  value TEXT NOT NULL,
  checksum TEXT NOT NULL
);
CREATE TABLE models (
  number INTEGER PRIMARY KEY,  -- models in the order of their first appearance
  id TEXT NOT NULL UNIQUE,  -- the model's id
  first_seen TEXT NOT NULL,
  last_seen TEXT NOT NULL,
  relation TEXT NOT NULL,  -- of its most trusted claim, the last one if it has gone
  claimed_by TEXT NOT NULL,  -- what that claim is based on
  parent TEXT NOT NULL,  -- the model that it names
  checksum TEXT NOT NULL
);
CREATE TABLE hub_rows (
  number INTEGER PRIMARY KEY,  -- of the model
  row TEXT NOT NULL,  -- JSON: the fields of the Hub's listing, and what its README names
  checksum TEXT NOT NULL
);
CREATE TABLE claims (
  number INTEGER NOT NULL,  -- of the model; one without any claim has left the Hub
  question TEXT NOT NULL,  -- the question of a crawl that shows the model, or: user, renamed, restored
  relation TEXT NOT NULL,
  claimed_by TEXT NOT NULL,
  parent TEXT NOT NULL,
  crawl TEXT NOT NULL,  -- the last crawl in which the question showed it
  checksum TEXT NOT NULL,
  PRIMARY KEY (number, question)
);
CREATE TABLE bad_rows (
  key TEXT PRIMARY KEY,  -- what identifies a row that could not be used
  why TEXT NOT NULL,
  raw TEXT NOT NULL,  -- its JSON, cut short
  seen TEXT NOT NULL,
  crawl TEXT NOT NULL,
  checksum TEXT NOT NULL
);
CREATE TABLE examined (
  kind TEXT NOT NULL,  -- rejected: by its files and its name; unrelated: by its weights
  id TEXT NOT NULL,  -- an untagged model that is not a fine-tune of this base
  sha TEXT NOT NULL,  -- the commit that was examined
  why TEXT NOT NULL,
  checksum TEXT NOT NULL,
  PRIMARY KEY (kind, id)
);
CREATE TABLE steps (
  id TEXT PRIMARY KEY,  -- a model of the family that is not listed: a quantised copy, a mirror
  parent TEXT NOT NULL,
  relation TEXT NOT NULL,
  downloads INTEGER NOT NULL,
  crawl TEXT NOT NULL,
  checksum TEXT NOT NULL
);
CREATE TABLE renamed (
  id TEXT PRIMARY KEY,  -- a model's old name
  new TEXT NOT NULL,
  checksum TEXT NOT NULL
);
CREATE TABLE removed (
  id TEXT PRIMARY KEY,  -- a model that the user took out, and that no crawl brings back
  seen TEXT NOT NULL,  -- when
  bases TEXT,  -- JSON: the bases that it is still to be removed from; NULL: nothing is left of it
  with_records INTEGER,  -- whether its records are to be removed too
  checksum TEXT NOT NULL
);
CREATE TABLE crawls (
  id TEXT PRIMARY KEY,  -- the last crawl; there is no other row
  started TEXT NOT NULL,
  parameters TEXT NOT NULL,  -- JSON: what was asked for
  question TEXT,  -- the question that is being asked
  link TEXT,  -- its next page
  oldest TEXT,  -- the earliest createdAt of its pages
  is_over INTEGER NOT NULL,
  checksum TEXT NOT NULL
);
CREATE TABLE answered (
  question TEXT PRIMARY KEY,  -- a question of the last crawl
  is_last INTEGER NOT NULL,  -- whether all its pages were read
  is_cut INTEGER NOT NULL,  -- whether a bound left some of its answers out
  checksum TEXT NOT NULL
);
CREATE TABLE answers (
  number INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,  -- lineage or predictions
  model TEXT NOT NULL,
  line TEXT NOT NULL,  -- JSON: the answer, its models and their records
  checksum TEXT NOT NULL
);
CREATE INDEX answers_of_models ON answers (kind, model);
