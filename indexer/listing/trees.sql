-- The trees that models of an atlas were found in, and where in them: private, so it stays in this file.
--
-- The last column of every table is a checksum of the row's other columns.

CREATE TABLE trees (
  tree TEXT PRIMARY KEY,  -- a hash of its address
  address TEXT,  -- a folder, or an address that fsspec knows; NULL if it is not to be stored
  author TEXT NOT NULL,  -- to whom its models are said to belong, "" if to nobody
  seen TEXT NOT NULL,  -- when it was listed last, ISO 8601 in UTC
  counts TEXT NOT NULL,  -- JSON: how many models it held then, and what became of them
  checksum TEXT NOT NULL
);
CREATE TABLE places (
  tree TEXT NOT NULL,
  place TEXT NOT NULL,  -- a hash of the whole path
  path TEXT,  -- JSON: the path of the folder or the file in the tree; NULL if it is not to be stored
  model TEXT NOT NULL,  -- what the atlas calls the model
  fingerprint TEXT NOT NULL,  -- of the names, sizes and times of its files
  facts TEXT NOT NULL,  -- JSON: its version, what names its base, its relation to that
  tried TEXT NOT NULL,  -- of a model that names no base: a hash of the bases that it was found not to come from
  is_here INTEGER NOT NULL,  -- whether it was there when the tree was listed last
  checksum TEXT NOT NULL,
  PRIMARY KEY (tree, place)
);
