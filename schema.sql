-- The atlas's database: every table, view and macro, with a comment on each column.
-- A new atlas.duckdb is made by running this file; no other code creates tables, views or macros.
-- The schema main is for queries; the schema internal is the program's own bookkeeping.
-- Times are UTC. A row of fine_tunes is one (model, base) pair; its integer model_id ties everything else to it.
-- It is one transaction: otherwise DuckDB would write to disk after each of about six hundred statements.

BEGIN TRANSACTION;

CREATE SCHEMA internal;

CREATE TABLE atlas_info (
    schema_version INTEGER NOT NULL,
    generation BIGINT NOT NULL,
    published TIMESTAMP,
    tool_version VARCHAR,
    next_model_id INTEGER NOT NULL
);
COMMENT ON TABLE atlas_info IS 'One row: the schema version of this file and the publish that made it.';
COMMENT ON COLUMN atlas_info.schema_version IS 'Version of schema.sql. A reader refuses every other version.';
COMMENT ON COLUMN atlas_info.generation IS 'Grows by one with every publish.';
COMMENT ON COLUMN atlas_info.published IS 'When this generation was published.';
COMMENT ON COLUMN atlas_info.tool_version IS 'Version of vectors-in-the-wild that published it.';
COMMENT ON COLUMN atlas_info.next_model_id IS 'The next free model_id; ids are never reused.';

CREATE TABLE bases (
    base VARCHAR NOT NULL,
    "commit" VARCHAR NOT NULL,
    aliases VARCHAR[] NOT NULL,
    model_type VARCHAR,
    architecture VARCHAR,
    layers STRUCT(stack VARCHAR, layers INTEGER)[],
    deltas VARCHAR[],
    block_bytes BIGINT,
    config JSON,
    licence VARCHAR
);
COMMENT ON TABLE bases IS 'Base models: one row each.';
COMMENT ON COLUMN bases.base IS 'Canonical id on the Hub, e.g. FacebookAI/roberta-base.';
COMMENT ON COLUMN bases."commit" IS 'Commit whose weights the deltas are taken against.';
COMMENT ON COLUMN bases.aliases IS 'Other ids of this base: old short ids, and ids by which users requested it.';
COMMENT ON COLUMN bases.model_type IS 'model_type of its config.json.';
COMMENT ON COLUMN bases.architecture IS 'The architecture data file that describes its tensors.';
COMMENT ON COLUMN bases.layers IS 'Number of layers of each stack; the name is empty if there is only one stack.';
COMMENT ON COLUMN bases.deltas IS 'Names of its deltas, in the order in which vectors concatenate them.';
COMMENT ON COLUMN bases.block_bytes IS 'Bytes of its block matrices as stored.';
COMMENT ON COLUMN bases.config IS 'Its config.json.';
COMMENT ON COLUMN bases.licence IS 'Licence given by its card; null if the card gives none, or the Hub has not been asked since version 0.2.';

CREATE TABLE fine_tunes (
    model_id INTEGER NOT NULL,
    model VARCHAR NOT NULL,
    base VARCHAR NOT NULL,
    author VARCHAR NOT NULL,
    "commit" VARCHAR,
    subfolder VARCHAR NOT NULL DEFAULT '',
    status VARCHAR NOT NULL,
    reason VARCHAR,
    detail VARCHAR,
    attempts INTEGER,
    tried TIMESTAMP,
    relation VARCHAR NOT NULL,
    claimed_by VARCHAR,
    parent VARCHAR,
    path STRUCT(relation VARCHAR, model VARCHAR)[],
    created TIMESTAMP,
    modified TIMESTAMP,
    downloads BIGINT,
    likes BIGINT,
    gated VARCHAR,
    private BOOLEAN,
    licence VARCHAR,
    languages VARCHAR[],
    pipeline_tag VARCHAR,
    library VARCHAR,
    trigger_words VARCHAR[],
    record_key VARCHAR,
    first_seen TIMESTAMP,
    last_seen TIMESTAMP,
    deleted_at_hub BOOLEAN NOT NULL DEFAULT false,
    oddities VARCHAR[],
    fingerprint VARCHAR
);
COMMENT ON TABLE fine_tunes IS 'Every model found for a base, indexed or not: one row per (model, base).';
COMMENT ON COLUMN fine_tunes.model_id IS 'Integer id, unique per (model, base) and never reused; also the id in the FAISS files.';
COMMENT ON COLUMN fine_tunes.model IS 'Id on the Hub (owner/name), or local:NAME for a folder of this machine.';
COMMENT ON COLUMN fine_tunes.base IS 'Canonical id of the base.';
COMMENT ON COLUMN fine_tunes.author IS 'Account that owns it; "local" for a folder.';
COMMENT ON COLUMN fine_tunes."commit" IS 'Commit of the model that this row describes.';
COMMENT ON COLUMN fine_tunes.subfolder IS 'Requested folder in the repository; empty for the root.';
COMMENT ON COLUMN fine_tunes.status IS 'indexed, skipped (cannot be indexed at this commit), failed (will be retried), or listed (not tried yet).';
COMMENT ON COLUMN fine_tunes.reason IS 'Why it was skipped or failed, as a code to group by.';
COMMENT ON COLUMN fine_tunes.detail IS 'Why it was skipped or failed, as a sentence.';
COMMENT ON COLUMN fine_tunes.attempts IS 'Number of attempts.';
COMMENT ON COLUMN fine_tunes.tried IS 'Time of the last attempt.';
COMMENT ON COLUMN fine_tunes.relation IS 'finetune, adapter, merge or quantized, as claimed by the model.';
COMMENT ON COLUMN fine_tunes.claimed_by IS 'Where the base is claimed: tag, alias:<id> (a tag with a mirror or a quantised copy of the base), adapter_config, config, card, name, user, folder (on this machine), or record (restored from its record).';
COMMENT ON COLUMN fine_tunes.parent IS 'The model it was tuned from directly, if that is not the base.';
COMMENT ON COLUMN fine_tunes.path IS 'The models from the base (not in the list) to this one (the last), according to their claims, each with its relation to the one before: finetune, adapter, merge, quantized, or copy (another name of the base''s weights). Its length is the number of steps.';
COMMENT ON COLUMN fine_tunes.created IS 'When the repository was created.';
COMMENT ON COLUMN fine_tunes.modified IS 'When it was last changed.';
COMMENT ON COLUMN fine_tunes.downloads IS 'Downloads in the last 30 days, as listed.';
COMMENT ON COLUMN fine_tunes.likes IS 'Likes, as listed.';
COMMENT ON COLUMN fine_tunes.gated IS 'auto or manual if access must be requested; null if it is open.';
COMMENT ON COLUMN fine_tunes.private IS 'Whether only its owner can see it on the Hub; null if unknown.';
COMMENT ON COLUMN fine_tunes.licence IS 'Licence given by the card.';
COMMENT ON COLUMN fine_tunes.languages IS 'Languages given by the card.';
COMMENT ON COLUMN fine_tunes.pipeline_tag IS 'Task, as shown by the Hub.';
COMMENT ON COLUMN fine_tunes.library IS 'Library tag: transformers, peft, sentence-transformers, …';
COMMENT ON COLUMN fine_tunes.trigger_words IS 'Words that a prompt of an image or video model must contain, according to its card (instance_prompt, trigger_words). Null if it names none.';
COMMENT ON COLUMN fine_tunes.record_key IS 'Name of its record file under records/.';
COMMENT ON COLUMN fine_tunes.first_seen IS 'When a crawl first saw it.';
COMMENT ON COLUMN fine_tunes.last_seen IS 'When a crawl last saw it.';
COMMENT ON COLUMN fine_tunes.deleted_at_hub IS 'Whether it has since been deleted at the Hub; its record stays.';
COMMENT ON COLUMN fine_tunes.oddities IS 'Malformed fields of its listing row and how they were interpreted.';
COMMENT ON COLUMN fine_tunes.fingerprint IS 'Digest of the inputs of this row: a publish rewrites a row only when it changes.';

CREATE TABLE records (
    model_id INTEGER NOT NULL,
    record_key VARCHAR NOT NULL,
    verified BOOLEAN,
    base_cosine DOUBLE,
    "read" VARCHAR NOT NULL DEFAULT 'full',
    is_copy BOOLEAN NOT NULL DEFAULT false,
    copy_evidence VARCHAR,
    is_unrelated BOOLEAN NOT NULL DEFAULT false,
    is_partly_frozen BOOLEAN NOT NULL DEFAULT false,
    base_grid VARCHAR,
    vector_group VARCHAR NOT NULL DEFAULT 'full',
    adapter_kind VARCHAR,
    start STRUCT(generator VARCHAR, seed BIGINT, "offset" BIGINT, prefix BIGINT, with_weights BOOLEAN, found INTEGER, modules INTEGER, distance DOUBLE, tool VARCHAR),
    passed_over VARCHAR[],
    signature VARCHAR,
    row_space VARCHAR,
    token_class VARCHAR,
    token_codes VARCHAR,
    token_is_share BOOLEAN,
    token_scale DOUBLE,
    token_rows INTEGER,
    base_token_rows INTEGER,
    position_rows INTEGER,
    has_pairs BOOLEAN,
    initialisation INTEGER,
    has_spectra BOOLEAN NOT NULL DEFAULT false,
    duplicate_group INTEGER,
    duplicate_of INTEGER,
    delta_norm DOUBLE,
    delta_norm_error DOUBLE NOT NULL DEFAULT 0,
    relative_norm DOUBLE,
    model_type VARCHAR,
    head_class VARCHAR,
    label_count INTEGER,
    label_names VARCHAR[],
    problem_type VARCHAR,
    dtype VARCHAR,
    weight_files STRUCT(name VARCHAR, size BIGINT, sha256 VARCHAR, format VARCHAR)[],
    bytes_read BIGINT,
    block_bytes BIGINT,
    seconds DOUBLE,
    device VARCHAR,
    made TIMESTAMP
);
COMMENT ON TABLE records IS 'Measurements of the weights of an indexed model: one row per record.';
COMMENT ON COLUMN records.model_id IS 'The model, see fine_tunes.';
COMMENT ON COLUMN records.record_key IS 'Name of its record file under records/.';
COMMENT ON COLUMN records.verified IS 'Whether its weights confirm the claimed base; null if that cannot be tested (adapters).';
COMMENT ON COLUMN records.base_cosine IS 'Cosine between its block matrices and the base''s; null for adapters.';
COMMENT ON COLUMN records."read" IS 'What was read of its block matrices: full, or sample (some rows of each matrix). Norms and singular values of a sample are estimates; index deepen reads the rest.';
COMMENT ON COLUMN records.is_copy IS 'Whether all deltas are zero in all that was read, see copy_evidence.';
COMMENT ON COLUMN records.copy_evidence IS 'What shows that is_copy is true: checksum (its file has the checksum of the base''s), weights (all block matrices are equal), sample (equal in all that was read, which does not prove it), untrained (an adapter that adds zero, as before training), or unmeasurable (an adapter whose change is below the rounding of float32). Null if it is not a copy.';
COMMENT ON COLUMN records.is_unrelated IS 'Whether it does not derive from this base: base_cosine is below the threshold (trained from scratch or from another model), or it is an adapter of another base.';
COMMENT ON COLUMN records.is_partly_frozen IS 'Whether it is a full fine-tune with some zero deltas.';
COMMENT ON COLUMN records.base_grid IS 'The 4-bit form to which the base had been rounded before this model was made from it, as its weights show: nf4, or nf4 double (with double quantisation). The error of that rounding is not part of its deltas. Null if it was made from the base as it is.';
COMMENT ON COLUMN records.vector_group IS 'What its vector is made of: adapter (of what training did to the input side of an adapter, whose start is known or not random), adapter by output (of its whole change, which holds the random numbers that it began with; with other adapters it is compared by its output side), or full (of the change of full weights: also a LoRA merged into these, a partly frozen model, an adapter of a full fine-tune, one that replaces whole matrices). Only from full ones a centre is subtracted, see internal.centres.';
COMMENT ON COLUMN records.adapter_kind IS 'Method of an adapter: LoRA, rsLoRA, DoRA, PiSSA, OLoRA, AdaLoRA, LoHa, LoKr, OFT, BOFT, HRA, IA3, VeRA, FourierFT, or whole matrices (it replaces them). Null for other models.';
COMMENT ON COLUMN records.start IS 'Where the factors A of an adapter began, null if that is not known. generator: uniform or normal (numbers of PyTorch''s CPU generator), pissa or olora (made from the base; then nothing else is known). seed: its low 32 bits. offset: numbers drawn before A of the first module; prefix: before anything that belongs to that module. with_weights: every module''s own weights were drawn as well. found: modules whose A was found where the others say, of modules. distance: norm of A - A0 by that of A0. tool: what seed and prefix tell of the program, if anything.';
COMMENT ON COLUMN records.passed_over IS 'Parts of an adapter that were not read, with their number: factors of convolutions, of fused experts, of bare parameters; then sentences on settings that its files leave open, and what was assumed. Null if there are none.';
COMMENT ON COLUMN records.signature IS 'Its uncentred vector hashed to 120 bytes (base64). Only models with similar signatures are compared matrix by matrix to find duplicates.';
COMMENT ON COLUMN records.row_space IS 'Sketch (base64) of the row space of its LoRA factors A. Models whose A started from the same random numbers have similar sketches. Null if the change is not a LoRA, merged or not.';
COMMENT ON COLUMN records.token_class IS 'What its input embedding says of its training text: exact (rows that no text touched can be recognised with certainty), statistical (only likely), or frozen (no row moved). Null for adapters, and where the embedding cannot be compared with the base''s. See query trace.';
COMMENT ON COLUMN records.token_codes IS 'How far each row of the input embedding that was read moved, a byte each (base64): 0 untouched, 254 unsure, 255 missing, else a logarithm of the size.';
COMMENT ON COLUMN records.token_is_share IS 'Whether token_codes stand for shares of a row''s change that lie off the directions common to all rows (of a tied language-model head), not for sizes.';
COMMENT ON COLUMN records.token_scale IS 'The factor by which weight decay shrank all rows of the input embedding.';
COMMENT ON COLUMN records.token_rows IS 'Number of rows of its input embedding.';
COMMENT ON COLUMN records.base_token_rows IS 'Number of rows of the base''s input embedding, which decides which are read.';
COMMENT ON COLUMN records.position_rows IS 'Number of rows of its position embeddings up to the last that moved; null if not known.';
COMMENT ON COLUMN records.has_pairs IS 'Whether the second token type occurred, as for pairs of texts; null if not known.';
COMMENT ON COLUMN records.initialisation IS 'Models with the same number have LoRA factors A that started from the same random numbers: same tool and same seed, which says nothing about their data. The number is the model_id of the first such model; null if no other model shares it.';
COMMENT ON COLUMN records.has_spectra IS 'Whether all singular values of its δW and W are stored (index build --spectra).';
COMMENT ON COLUMN records.duplicate_group IS 'The model_id of the earliest model of its group of duplicates (its own if it is the earliest); null if it has no duplicates.';
COMMENT ON COLUMN records.duplicate_of IS 'The model_id of the earlier upload that it duplicates; null if there is none.';
COMMENT ON COLUMN records.delta_norm IS 'Frobenius norm of all its deltas taken together; an estimate if a sample was read.';
COMMENT ON COLUMN records.delta_norm_error IS 'Standard error of delta_norm; 0 if all matrices were read whole.';
COMMENT ON COLUMN records.relative_norm IS 'delta_norm divided by the Frobenius norm of the base''s block matrices.';
COMMENT ON COLUMN records.model_type IS 'model_type of its config.json.';
COMMENT ON COLUMN records.head_class IS 'Class of its head, e.g. RobertaForSequenceClassification.';
COMMENT ON COLUMN records.label_count IS 'Number of labels in its config.json.';
COMMENT ON COLUMN records.label_names IS 'Names of the labels, unless they are the default LABEL_0, LABEL_1, …';
COMMENT ON COLUMN records.problem_type IS 'problem_type of its config.json.';
COMMENT ON COLUMN records.dtype IS 'The dtype that most of its weights are stored in; fp8 or mlx (8 bits) if they are codes and scales, which adds the noise of that rounding to its change.';
COMMENT ON COLUMN records.weight_files IS 'The files that were read, with their LFS ids if known.';
COMMENT ON COLUMN records.bytes_read IS 'Bytes read to make the record.';
COMMENT ON COLUMN records.block_bytes IS 'Bytes of its block matrices, or of the factors of an adapter.';
COMMENT ON COLUMN records.seconds IS 'Seconds spent reading and vectorising it.';
COMMENT ON COLUMN records.device IS 'Where the SVD ran: cpu or cuda.';
COMMENT ON COLUMN records.made IS 'When the record was made.';

CREATE TABLE tags (model_id INTEGER NOT NULL, tag VARCHAR NOT NULL);
COMMENT ON TABLE tags IS 'Every tag at the Hub, as written (control characters are escaped).';
COMMENT ON COLUMN tags.model_id IS 'The model, see fine_tunes.';
COMMENT ON COLUMN tags.tag IS 'The tag.';

CREATE TABLE model_datasets (
    model_id INTEGER NOT NULL,
    dataset VARCHAR,
    parent VARCHAR,
    raw VARCHAR NOT NULL,
    source VARCHAR NOT NULL
);
COMMENT ON TABLE model_datasets IS 'Datasets that a model names, each under one canonical name.';
COMMENT ON COLUMN model_datasets.model_id IS 'The model, see fine_tunes.';
COMMENT ON COLUMN model_datasets.dataset IS 'Canonical name: glue, glue/mrpc, squad, owner/name; null if the text is not a dataset name.';
COMMENT ON COLUMN model_datasets.parent IS 'The dataset that it is a subtask of: glue for glue/mrpc. The model also has a row for the parent.';
COMMENT ON COLUMN model_datasets.raw IS 'The name as written in the card or tag.';
COMMENT ON COLUMN model_datasets.source IS 'Where it is written: tag, card, model-index, or readme (the sentence of the tool that tuned it; read only if the others name none).';

CREATE TABLE evaluations (
    model_id INTEGER NOT NULL,
    task VARCHAR,
    dataset VARCHAR,
    dataset_raw VARCHAR,
    config VARCHAR,
    split VARCHAR,
    metric VARCHAR,
    "value" DOUBLE,
    verified BOOLEAN
);
COMMENT ON TABLE evaluations IS 'Evaluation results reported in the model-index of the card.';
COMMENT ON COLUMN evaluations.model_id IS 'The model, see fine_tunes.';
COMMENT ON COLUMN evaluations.task IS 'Task type, e.g. text-classification.';
COMMENT ON COLUMN evaluations.dataset IS 'Canonical dataset name, if there is one.';
COMMENT ON COLUMN evaluations.dataset_raw IS 'The dataset as written.';
COMMENT ON COLUMN evaluations.config IS 'Configuration of the dataset, e.g. mrpc.';
COMMENT ON COLUMN evaluations.split IS 'Dataset split that was used.';
COMMENT ON COLUMN evaluations.metric IS 'Metric type, e.g. accuracy.';
COMMENT ON COLUMN evaluations."value" IS 'Its value; null if it is not a number.';
COMMENT ON COLUMN evaluations.verified IS 'Whether the Hub verified it.';

CREATE TABLE deltas (
    model_id INTEGER NOT NULL,
    stack VARCHAR NOT NULL,
    layer INTEGER NOT NULL,
    family VARCHAR NOT NULL,
    out_features INTEGER NOT NULL,
    in_features INTEGER NOT NULL,
    rows_read INTEGER,
    norm FLOAT NOT NULL,
    norm_error FLOAT NOT NULL DEFAULT 0,
    relative_norm FLOAT NOT NULL,
    energy FLOAT NOT NULL,
    singular_values FLOAT[] NOT NULL,
    rank_50 INTEGER,
    rank_80 INTEGER,
    rank_90 INTEGER,
    rank_95 INTEGER,
    rank_99 INTEGER,
    weight_rank_50 INTEGER,
    weight_rank_80 INTEGER,
    weight_rank_90 INTEGER,
    weight_rank_95 INTEGER,
    weight_rank_99 INTEGER
);
COMMENT ON TABLE deltas IS 'Weight changes: one row per δW, that is per (stack, layer, family) of a model.';
COMMENT ON COLUMN deltas.model_id IS 'The model, see fine_tunes.';
COMMENT ON COLUMN deltas.stack IS 'encoder, decoder, text, vision and so on; empty if the base has only one stack.';
COMMENT ON COLUMN deltas.layer IS 'Block index, from 0.';
COMMENT ON COLUMN deltas.family IS 'query, key, value, output, gate, feedforward1, feedforward2, cross_query …';
COMMENT ON COLUMN deltas.out_features IS 'Rows of δW.';
COMMENT ON COLUMN deltas.in_features IS 'Columns of δW.';
COMMENT ON COLUMN deltas.rows_read IS 'How many rows of δW were read (of matrices that checkpoints store transposed: columns); null for all. Of a sample, norm and singular values are estimates.';
COMMENT ON COLUMN deltas.norm IS 'Frobenius norm of δW.';
COMMENT ON COLUMN deltas.norm_error IS 'Standard error of norm; 0 if all rows were read.';
COMMENT ON COLUMN deltas.relative_norm IS 'norm divided by the Frobenius norm of the base''s matrix.';
COMMENT ON COLUMN deltas.energy IS 'Share of norm² that the stored singular values account for; of a sample, the share of the rows that were read, which is larger.';
COMMENT ON COLUMN deltas.singular_values IS 'The largest singular values of δW, descending.';
COMMENT ON COLUMN deltas.rank_50 IS 'Smallest rank that holds 50 % of the energy; null if it exceeds the stored singular values.';
COMMENT ON COLUMN deltas.rank_80 IS 'Smallest rank that holds 80 % of the energy, if known.';
COMMENT ON COLUMN deltas.rank_90 IS 'Smallest rank that holds 90 % of the energy, if known.';
COMMENT ON COLUMN deltas.rank_95 IS 'Smallest rank that holds 95 % of the energy, if known.';
COMMENT ON COLUMN deltas.rank_99 IS 'Smallest rank that holds 99 % of the energy, if known.';
COMMENT ON COLUMN deltas.weight_rank_50 IS 'The same for W itself, at 50 %; null if its spectrum is not stored (index build --spectra).';
COMMENT ON COLUMN deltas.weight_rank_80 IS 'The same for W itself, at 80 %, if known.';
COMMENT ON COLUMN deltas.weight_rank_90 IS 'The same for W itself, at 90 %, if known.';
COMMENT ON COLUMN deltas.weight_rank_95 IS 'The same for W itself, at 95 %, if known.';
COMMENT ON COLUMN deltas.weight_rank_99 IS 'The same for W itself, at 99 %, if known.';

CREATE TABLE fused_matrices (
    model_id INTEGER NOT NULL,
    stack VARCHAR NOT NULL,
    layer INTEGER NOT NULL,
    family VARCHAR NOT NULL,
    families VARCHAR[] NOT NULL,
    out_features INTEGER NOT NULL,
    in_features INTEGER NOT NULL,
    norm FLOAT NOT NULL,
    rank_50 INTEGER,
    rank_80 INTEGER,
    rank_90 INTEGER,
    rank_95 INTEGER,
    rank_99 INTEGER,
    weight_rank_50 INTEGER,
    weight_rank_80 INTEGER,
    weight_rank_90 INTEGER,
    weight_rank_95 INTEGER,
    weight_rank_99 INTEGER
);
COMMENT ON TABLE fused_matrices IS 'Matrices that the base stores fused (such as c_attn of GPT-2), measured as a whole; only for records with spectra.';
COMMENT ON COLUMN fused_matrices.model_id IS 'The model, see fine_tunes.';
COMMENT ON COLUMN fused_matrices.stack IS 'encoder, decoder, text, vision and so on; empty if the base has only one stack.';
COMMENT ON COLUMN fused_matrices.layer IS 'Block index, from 0.';
COMMENT ON COLUMN fused_matrices.family IS 'Names of its parts: query_key_value, gate_feedforward1, …';
COMMENT ON COLUMN fused_matrices.families IS 'The families that it consists of; each also has its own row in deltas.';
COMMENT ON COLUMN fused_matrices.out_features IS 'Rows of δW, summed over its parts.';
COMMENT ON COLUMN fused_matrices.in_features IS 'Columns of δW.';
COMMENT ON COLUMN fused_matrices.norm IS 'Frobenius norm of δW.';
COMMENT ON COLUMN fused_matrices.rank_50 IS 'Smallest rank that holds 50 % of the energy of δW; 0 if δW is zero.';
COMMENT ON COLUMN fused_matrices.rank_80 IS 'Smallest rank that holds 80 % of the energy of δW; 0 if δW is zero.';
COMMENT ON COLUMN fused_matrices.rank_90 IS 'Smallest rank that holds 90 % of the energy of δW; 0 if δW is zero.';
COMMENT ON COLUMN fused_matrices.rank_95 IS 'Smallest rank that holds 95 % of the energy of δW; 0 if δW is zero.';
COMMENT ON COLUMN fused_matrices.rank_99 IS 'Smallest rank that holds 99 % of the energy of δW; 0 if δW is zero.';
COMMENT ON COLUMN fused_matrices.weight_rank_50 IS 'The same for W itself, at 50 %.';
COMMENT ON COLUMN fused_matrices.weight_rank_80 IS 'The same for W itself, at 80 %.';
COMMENT ON COLUMN fused_matrices.weight_rank_90 IS 'The same for W itself, at 90 %.';
COMMENT ON COLUMN fused_matrices.weight_rank_95 IS 'The same for W itself, at 95 %.';
COMMENT ON COLUMN fused_matrices.weight_rank_99 IS 'The same for W itself, at 99 %.';

CREATE TABLE representations (
    base VARCHAR NOT NULL,
    representation VARCHAR NOT NULL,
    version INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    length INTEGER NOT NULL,
    vectors INTEGER NOT NULL,
    per_delta BOOLEAN NOT NULL,
    blocks INTEGER NOT NULL,
    budget INTEGER,
    centre VARCHAR
);
COMMENT ON TABLE representations IS 'Published vectors: one row per (base, representation). The view indexes lists their files.';
COMMENT ON COLUMN representations.base IS 'Canonical id of the base.';
COMMENT ON COLUMN representations.representation IS 'Name: input, input_v1, output, delta, seed, seed_scaled, spectrum, depth, vocabulary.';
COMMENT ON COLUMN representations.version IS 'Version of the representation; vectors of different versions are never compared.';
COMMENT ON COLUMN representations.rank IS 'Number of singular triplets that the vectors were computed from.';
COMMENT ON COLUMN representations.length IS 'Length of a vector.';
COMMENT ON COLUMN representations.vectors IS 'Number of models with a vector (a copy of the base has none).';
COMMENT ON COLUMN representations.per_delta IS 'Whether a vector concatenates equally long blocks in the order of bases.deltas.';
COMMENT ON COLUMN representations.blocks IS 'Number of blocks, where similarity is the mean cosine of the blocks that both models changed; 0 where it is the cosine of the whole vector. A vocabulary vector has two, and each model has only one of them: sizes of changes, or shares of the change of a tied head.';
COMMENT ON COLUMN representations.budget IS 'Requested length of a vector (--vector-length), approximately; null if none was requested.';
COMMENT ON COLUMN representations.centre IS 'Version of the centre that was subtracted from every vector, see internal.centres; null if none was.';

CREATE TABLE internal.segments (
    base VARCHAR NOT NULL,
    representation VARCHAR NOT NULL,
    segment INTEGER NOT NULL,
    vectors INTEGER NOT NULL,
    centre VARCHAR,
    faiss_file VARCHAR NOT NULL,
    faiss_sha256 VARCHAR NOT NULL,
    faiss_bytes BIGINT NOT NULL
);
COMMENT ON TABLE internal.segments IS 'FAISS files of exact vectors. A file is never changed; small files are merged into larger ones from time to time.';
COMMENT ON COLUMN internal.segments.base IS 'Canonical id of the base.';
COMMENT ON COLUMN internal.segments.representation IS 'Name of the representation.';
COMMENT ON COLUMN internal.segments.segment IS 'Number of the segment; older segments have smaller numbers.';
COMMENT ON COLUMN internal.segments.vectors IS 'Vectors in the file, including those listed in removed_vectors.';
COMMENT ON COLUMN internal.segments.centre IS 'Version of the centre that was subtracted from its vectors, the same as that of the representation. Centred vectors are stored in 16 bits. Null if not centred.';
COMMENT ON COLUMN internal.segments.faiss_file IS 'Name of the FAISS file in the folder of this database.';
COMMENT ON COLUMN internal.segments.faiss_sha256 IS 'sha256 of that file, verified before it is loaded.';
COMMENT ON COLUMN internal.segments.faiss_bytes IS 'Its size in bytes.';

CREATE TABLE internal.removed_vectors (
    base VARCHAR NOT NULL,
    representation VARCHAR NOT NULL,
    segment INTEGER NOT NULL,
    model_id INTEGER NOT NULL
);
COMMENT ON TABLE internal.removed_vectors IS 'Vectors of a segment that are no longer valid: withdrawn, or replaced by a newer segment.';
COMMENT ON COLUMN internal.removed_vectors.base IS 'Canonical id of the base.';
COMMENT ON COLUMN internal.removed_vectors.representation IS 'Name of the representation.';
COMMENT ON COLUMN internal.removed_vectors.segment IS 'The segment that contains the vector, see internal.segments.';
COMMENT ON COLUMN internal.removed_vectors.model_id IS 'The model, see fine_tunes.';

CREATE TABLE internal.vector_masks (
    base VARCHAR NOT NULL,
    representation VARCHAR NOT NULL,
    changed VARCHAR NOT NULL,
    model_ids INTEGER[] NOT NULL
);
COMMENT ON TABLE internal.vector_masks IS 'Models whose vectors have zero blocks, because they left some matrices unchanged (adapters, partly frozen models). Models that are not listed have all blocks.';
COMMENT ON COLUMN internal.vector_masks.base IS 'Canonical id of the base.';
COMMENT ON COLUMN internal.vector_masks.representation IS 'Name of the representation.';
COMMENT ON COLUMN internal.vector_masks.changed IS 'One digit per block, in the order of bases.deltas: 1 if the matrix was changed.';
COMMENT ON COLUMN internal.vector_masks.model_ids IS 'The models with this pattern, see fine_tunes.';

CREATE TABLE internal.centres (
    base VARCHAR NOT NULL,
    representation VARCHAR NOT NULL,
    vector_group VARCHAR NOT NULL,
    block INTEGER NOT NULL,
    models INTEGER NOT NULL,
    votes DOUBLE NOT NULL,
    datasets INTEGER NOT NULL,
    numbers FLOAT[] NOT NULL
);
COMMENT ON TABLE internal.centres IS 'The centre that is subtracted from every block before the block is rescaled to unit norm: a mean block of the full fine-tunes, times (votes - 2)/votes, or 0 up to two votes. An author has one vote, and models of several authors that are more alike than most share votes. It is recomputed only when the group has grown by half. Nothing is subtracted from adapters.';
COMMENT ON COLUMN internal.centres.base IS 'Canonical id of the base.';
COMMENT ON COLUMN internal.centres.representation IS 'Name of the representation.';
COMMENT ON COLUMN internal.centres.vector_group IS 'full, see records.vector_group.';
COMMENT ON COLUMN internal.centres.block IS 'Number of the block, from 0, in the order of bases.deltas.';
COMMENT ON COLUMN internal.centres.models IS 'Models of the group when the centre was computed, without copies, unrelated models and duplicates.';
COMMENT ON COLUMN internal.centres.votes IS 'Number of votes of the models that changed the matrix: at most the number of their authors, and fewer if models of several authors are more alike than most.';
COMMENT ON COLUMN internal.centres.datasets IS 'How many different sets of datasets its models named when the centre was computed; of models that named none, each author counts as one.';
COMMENT ON COLUMN internal.centres.numbers IS 'The block of the centre.';

CREATE TABLE internal.centre_members (
    base VARCHAR NOT NULL,
    representation VARCHAR NOT NULL,
    vector_group VARCHAR NOT NULL,
    model_id INTEGER NOT NULL,
    record_key VARCHAR NOT NULL,
    vote VARCHAR NOT NULL
);
COMMENT ON TABLE internal.centre_members IS 'The models that a centre was computed from, as they were then; a later publish may have changed them.';
COMMENT ON COLUMN internal.centre_members.base IS 'Canonical id of the base.';
COMMENT ON COLUMN internal.centre_members.representation IS 'Name of the representation.';
COMMENT ON COLUMN internal.centre_members.vector_group IS 'full.';
COMMENT ON COLUMN internal.centre_members.model_id IS 'The model, see fine_tunes.';
COMMENT ON COLUMN internal.centre_members.record_key IS 'Its record at that time.';
COMMENT ON COLUMN internal.centre_members.vote IS 'Whose vote it was part of: its author''s.';

CREATE TABLE null_similarity (
    base VARCHAR NOT NULL,
    representation VARCHAR NOT NULL,
    one_group VARCHAR NOT NULL,
    other_group VARCHAR NOT NULL,
    pairs BIGINT NOT NULL,
    similarity FLOAT NOT NULL,
    share DOUBLE NOT NULL,
    share_high DOUBLE
);
COMMENT ON TABLE null_similarity IS 'The null distribution of similarity: that of pairs of unrelated models, by different authors and with no dataset in common (both name some). Each row is one point of the distribution; there are no rows where there are too few pairs. Recomputed whenever the centre changes or a group has grown by half.';
COMMENT ON COLUMN null_similarity.base IS 'Canonical id of the base.';
COMMENT ON COLUMN null_similarity.representation IS 'Name of the representation.';
COMMENT ON COLUMN null_similarity.one_group IS 'Group of one of the two models, see records.vector_group; the first in alphabetical order.';
COMMENT ON COLUMN null_similarity.other_group IS 'Group of the other model.';
COMMENT ON COLUMN null_similarity.pairs IS 'Number of pairs that were compared.';
COMMENT ON COLUMN null_similarity.similarity IS 'A similarity.';
COMMENT ON COLUMN null_similarity.share IS 'Share of pairs that are at least as similar: (1 + their number)/(1 + pairs).';
COMMENT ON COLUMN null_similarity.share_high IS 'Upper end of the 95 % interval of share, by leaving out authors; null if there are too few authors.';

CREATE TABLE internal.null_groups (
    base VARCHAR NOT NULL,
    representation VARCHAR NOT NULL,
    vector_group VARCHAR NOT NULL,
    models BIGINT NOT NULL
);
COMMENT ON TABLE internal.null_groups IS 'How many models there were when the null distributions were computed. These are computed again once a group has grown by half.';
COMMENT ON COLUMN internal.null_groups.base IS 'Canonical id of the base.';
COMMENT ON COLUMN internal.null_groups.representation IS 'Name of the representation.';
COMMENT ON COLUMN internal.null_groups.vector_group IS 'A group, see records.vector_group.';
COMMENT ON COLUMN internal.null_groups.models IS 'Its models that name a dataset, without copies, unrelated models and duplicates.';

CREATE TABLE neighbours (
    representation VARCHAR NOT NULL,
    model_id INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    neighbour_id INTEGER NOT NULL,
    similarity FLOAT NOT NULL
);
COMMENT ON TABLE neighbours IS 'The 50 nearest models of each model, per published representation.';
COMMENT ON COLUMN neighbours.representation IS 'Name of the representation.';
COMMENT ON COLUMN neighbours.model_id IS 'The model whose neighbours these are, see fine_tunes.';
COMMENT ON COLUMN neighbours.rank IS '1 for the nearest.';
COMMENT ON COLUMN neighbours.neighbour_id IS 'The neighbour, see fine_tunes.';
COMMENT ON COLUMN neighbours.similarity IS 'Mean cosine of the blocks that both models changed; for representations without blocks, the cosine of the vectors. The macro background says how unusual a similarity is.';

CREATE TABLE internal.compared_deltas (model_id INTEGER NOT NULL, other_id INTEGER NOT NULL, difference DOUBLE NOT NULL);
COMMENT ON TABLE internal.compared_deltas IS 'Pairs of similar models whose deltas were compared matrix by matrix. Duplicate groups consist of the equal ones.';
COMMENT ON COLUMN internal.compared_deltas.model_id IS 'The model with the smaller id, see fine_tunes.';
COMMENT ON COLUMN internal.compared_deltas.other_id IS 'The other model.';
COMMENT ON COLUMN internal.compared_deltas.difference IS 'The larger of the relative difference of any norm and 1 − cosine of the deltas; 0 if rounding to another dtype explains the difference.';

CREATE TABLE lineage (
    model_id INTEGER NOT NULL,
    record_key VARCHAR NOT NULL,
    parent_id INTEGER,
    kind VARCHAR NOT NULL,
    method VARCHAR,
    coefficient DOUBLE NOT NULL,
    "left" DOUBLE NOT NULL,
    card VARCHAR NOT NULL,
    direction VARCHAR NOT NULL,
    evidence VARCHAR,
    same VARCHAR[] NOT NULL,
    bytes_read BIGINT NOT NULL,
    answered_at TIMESTAMP NOT NULL,
    probability DOUBLE NOT NULL
);
COMMENT ON TABLE lineage IS 'The parents of each model, inferred from the weights: one row per parent (query lineage --all).';
COMMENT ON COLUMN lineage.model_id IS 'The model, see fine_tunes.';
COMMENT ON COLUMN lineage.record_key IS 'The record that the answer was computed from; a publish deletes the row once the model has another record.';
COMMENT ON COLUMN lineage.parent_id IS 'The parent, see fine_tunes; null for the base, or if the parent is not in the atlas.';
COMMENT ON COLUMN lineage.kind IS 'tuned from the base, continued, "continued, or a run with the same data and seed", merge, LoRA merged, copy, recast, quantised copy, untrained adapter, or unrelated.';
COMMENT ON COLUMN lineage.method IS 'For a merge: linear, task arithmetic, slerp, layer by layer (a different recipe in each matrix), or "ties or dare".';
COMMENT ON COLUMN lineage.coefficient IS 'Weight of the parent; 1 except for merges.';
COMMENT ON COLUMN lineage."left" IS 'Residual: share of the energy of its change that its parents together do not explain.';
COMMENT ON COLUMN lineage.card IS 'Comparison with the card: confirmed, contradicted, not declared, or "unsure" if probability is below 0.9.';
COMMENT ON COLUMN lineage.direction IS 'known, or unknown if neither the weights nor the dates show which of the two models came first.';
COMMENT ON COLUMN lineage.evidence IS 'The evidence, in a few words.';
COMMENT ON COLUMN lineage.same IS 'Models whose weights cannot be distinguished from the parent.';
COMMENT ON COLUMN lineage.bytes_read IS 'Bytes of weights that were read for the answer, summed over all parents.';
COMMENT ON COLUMN lineage.answered_at IS 'When the answer was computed, UTC.';
COMMENT ON COLUMN lineage.probability IS 'Calibrated probability that the step is right (docs/lineage.md).';

CREATE TABLE predictions (
    model_id INTEGER NOT NULL,
    record_key VARCHAR NOT NULL,
    rank INTEGER NOT NULL,
    dataset VARCHAR NOT NULL,
    probability DOUBLE NOT NULL,
    votes DOUBLE NOT NULL,
    agreement DOUBLE NOT NULL,
    authors INTEGER NOT NULL,
    vectors DOUBLE,
    head DOUBLE,
    declared BOOLEAN NOT NULL,
    calibrated BOOLEAN NOT NULL,
    models VARCHAR[] NOT NULL,
    representation VARCHAR NOT NULL,
    k INTEGER NOT NULL,
    answered_at TIMESTAMP NOT NULL
);
COMMENT ON TABLE predictions IS 'Datasets that models were probably tuned on (query predict --store): one row per (model, dataset).';
COMMENT ON COLUMN predictions.model_id IS 'The model, see fine_tunes.';
COMMENT ON COLUMN predictions.record_key IS 'The record that the answer was computed from; a publish deletes the row once the model has another record.';
COMMENT ON COLUMN predictions.rank IS '1 for the most probable.';
COMMENT ON COLUMN predictions.dataset IS 'Canonical name, or "none of these": a dataset that no voter names.';
COMMENT ON COLUMN predictions.probability IS 'Expected share of this dataset among the datasets of the model.';
COMMENT ON COLUMN predictions.votes IS 'Sum of the votes of the models among the k nearest that name it; the vote of the nearest is 1.';
COMMENT ON COLUMN predictions.agreement IS 'Share of all votes that name it; 0 if there are no votes.';
COMMENT ON COLUMN predictions.authors IS 'Number of authors of the models that vote for it.';
COMMENT ON COLUMN predictions.vectors IS 'The probability by the vectors alone; null if the model has no vector.';
COMMENT ON COLUMN predictions.head IS 'The probability by the head in its config.json alone; null if there is none.';
COMMENT ON COLUMN predictions.declared IS 'Whether its own card names it. The card is not used for the prediction.';
COMMENT ON COLUMN predictions.calibrated IS 'Whether the probabilities were fitted to this atlas.';
COMMENT ON COLUMN predictions.models IS 'The models that vote for it, the largest vote first.';
COMMENT ON COLUMN predictions.representation IS 'The representation that was used.';
COMMENT ON COLUMN predictions.k IS 'Number of nearest models that vote.';
COMMENT ON COLUMN predictions.answered_at IS 'When the answer was computed, UTC.';

CREATE TABLE profiles (
    profile_id INTEGER NOT NULL,
    model_id INTEGER,
    base VARCHAR NOT NULL,
    subject VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    "commit" VARCHAR,
    base_commit VARCHAR,
    probe VARCHAR NOT NULL,
    probe_sha256 VARCHAR,
    sequences INTEGER,
    tokens INTEGER,
    seed BIGINT,
    method VARCHAR NOT NULL,
    recipe VARCHAR NOT NULL,
    asked VARCHAR[] NOT NULL,
    is_complete BOOLEAN NOT NULL,
    profile_key VARCHAR NOT NULL,
    device VARCHAR,
    threads INTEGER,
    cpu_seconds DOUBLE,
    made TIMESTAMP
);
COMMENT ON TABLE profiles IS 'Depth profiles (index profile): what each layer of a model keeps of its input. One row per file under profiles/.';
COMMENT ON COLUMN profiles.profile_id IS 'Key to profile_layers; changes whenever a publish reads the file again.';
COMMENT ON COLUMN profiles.model_id IS 'The model, see fine_tunes; null for a base and for an untrained twin.';
COMMENT ON COLUMN profiles.base IS 'Canonical id of the base.';
COMMENT ON COLUMN profiles.subject IS 'base, fine_tune, or untrained (the base''s architecture with fresh weights).';
COMMENT ON COLUMN profiles.model IS 'Id of the model; of the base for a base and an untrained twin.';
COMMENT ON COLUMN profiles."commit" IS 'Commit whose weights were profiled.';
COMMENT ON COLUMN profiles.base_commit IS 'Commit of the base that drift and cka are taken against.';
COMMENT ON COLUMN profiles.probe IS 'Kind of input: random, text or image.';
COMMENT ON COLUMN profiles.probe_sha256 IS 'sha256 of the token ids or pixels; profiles of different probes are not compared.';
COMMENT ON COLUMN profiles.sequences IS 'Number of sequences or images in the probe.';
COMMENT ON COLUMN profiles.tokens IS 'Number of tokens in a sequence; null for images.';
COMMENT ON COLUMN profiles.seed IS 'Seed of all draws.';
COMMENT ON COLUMN profiles.method IS 'Version of the measures.';
COMMENT ON COLUMN profiles.recipe IS 'default, or original: the gradient descent of the original papers.';
COMMENT ON COLUMN profiles.asked IS 'Sets of measures that were requested: default, recover, exact.';
COMMENT ON COLUMN profiles.is_complete IS 'False if the run was stopped; the layers that are present are complete.';
COMMENT ON COLUMN profiles.profile_key IS 'Name of its file under profiles/.';
COMMENT ON COLUMN profiles.device IS 'Where it was measured: cpu or cuda.';
COMMENT ON COLUMN profiles.threads IS 'Number of threads; with another number the results differ in the last bits.';
COMMENT ON COLUMN profiles.cpu_seconds IS 'Processor time in seconds.';
COMMENT ON COLUMN profiles.made IS 'When it was made.';

CREATE TABLE profile_layers (
    profile_id INTEGER NOT NULL,
    stack VARCHAR NOT NULL,
    layer INTEGER NOT NULL,
    is_constant BOOLEAN NOT NULL,
    tolerance FLOAT,
    tolerance_error FLOAT,
    tolerance_own FLOAT,
    tolerance_own_error FLOAT,
    readable FLOAT,
    readable_error FLOAT,
    recovered FLOAT,
    recovered_error FLOAT,
    recovered_seed FLOAT,
    recovered_seed_error FLOAT,
    closer FLOAT,
    closer_error FLOAT,
    closer_ratio FLOAT,
    closer_ratio_error FLOAT,
    verified FLOAT,
    verified_error FLOAT,
    reach FLOAT,
    reach_error FLOAT,
    own FLOAT,
    own_error FLOAT,
    start_share FLOAT,
    start_share_error FLOAT,
    cka FLOAT,
    cka_error FLOAT,
    drift FLOAT,
    drift_error FLOAT,
    image_error FLOAT,
    image_error_error FLOAT,
    spread FLOAT
);
COMMENT ON TABLE profile_layers IS 'One layer of a depth profile. A null means that the measure was not requested or is undefined here; it never means 0.';
COMMENT ON COLUMN profile_layers.profile_id IS 'The profile, see profiles.';
COMMENT ON COLUMN profile_layers.stack IS 'encoder if the model has two stacks, else empty.';
COMMENT ON COLUMN profile_layers.layer IS 'The output of this block, counted from 1; deltas.layer counts the same block from 0.';
COMMENT ON COLUMN profile_layers.is_constant IS 'Whether its outputs do not depend on the input.';
COMMENT ON COLUMN profile_layers.tolerance IS 'Noise, in units of spread, at which the best decoder that knows all other tokens loses half of the tokens; 0 if the layer is constant. It does not depend on rank.';
COMMENT ON COLUMN profile_layers.tolerance_error IS 'Standard error of tolerance.';
COMMENT ON COLUMN profile_layers.tolerance_own IS 'The same with noise of the layer''s own covariance, which does depend on rank.';
COMMENT ON COLUMN profile_layers.tolerance_own_error IS 'Standard error of tolerance_own.';
COMMENT ON COLUMN profile_layers.readable IS 'Share of tokens that a linear map, fitted on random tokens, recovers at their position; 1 at all layers of a healthy encoder.';
COMMENT ON COLUMN profile_layers.readable_error IS 'Standard error of readable.';
COMMENT ON COLUMN profile_layers.recovered IS 'Share of tokens recovered by 30 steps of gradient descent on embeddings from a blank start; also low if the layer is ill-conditioned.';
COMMENT ON COLUMN profile_layers.recovered_error IS 'Standard error of recovered.';
COMMENT ON COLUMN profile_layers.recovered_seed IS 'The same by the method of the original papers (index profile --recipe original).';
COMMENT ON COLUMN profile_layers.recovered_seed_error IS 'Standard error of recovered_seed.';
COMMENT ON COLUMN profile_layers.closer IS 'Share of sequences whose recovered input gives a closer output than a shifted input does: the criterion of the original papers.';
COMMENT ON COLUMN profile_layers.closer_error IS 'Standard error of closer.';
COMMENT ON COLUMN profile_layers.closer_ratio IS 'Factor by which it is closer, on average.';
COMMENT ON COLUMN profile_layers.closer_ratio_error IS 'Standard error of closer_ratio.';
COMMENT ON COLUMN profile_layers.verified IS 'Share of tokens in sequences that were recovered exactly, with a certificate (index profile --exact). It is 1 nearly everywhere, so it does not measure depth.';
COMMENT ON COLUMN profile_layers.verified_error IS 'Standard error of verified.';
COMMENT ON COLUMN profile_layers.reach IS 'Effective number of input positions that an output depends on: the exponential of the entropy of squared gradients.';
COMMENT ON COLUMN profile_layers.reach_error IS 'Standard error of reach.';
COMMENT ON COLUMN profile_layers.own IS 'Share of its own position in the squared gradients.';
COMMENT ON COLUMN profile_layers.own_error IS 'Standard error of own.';
COMMENT ON COLUMN profile_layers.start_share IS 'Share of the first quarter of the input in the squared gradients.';
COMMENT ON COLUMN profile_layers.start_share_error IS 'Standard error of start_share.';
COMMENT ON COLUMN profile_layers.cka IS 'Linear CKA with the same layer of the base on the same probe.';
COMMENT ON COLUMN profile_layers.cka_error IS 'Standard error of cka.';
COMMENT ON COLUMN profile_layers.drift IS '‖h − h_base‖ / ‖h_base − its mean‖ on the same probe.';
COMMENT ON COLUMN profile_layers.drift_error IS 'Standard error of drift.';
COMMENT ON COLUMN profile_layers.image_error IS '‖found − truth‖ / ‖truth − its mean‖ for images recovered from the output of this layer.';
COMMENT ON COLUMN profile_layers.image_error_error IS 'Standard error of image_error.';
COMMENT ON COLUMN profile_layers.spread IS 'The unit of noise: the median over positions of the rms deviation of outputs from their mean.';

CREATE TABLE rejected_listing_rows (base VARCHAR NOT NULL, why VARCHAR NOT NULL, raw VARCHAR, seen TIMESTAMP);
COMMENT ON TABLE rejected_listing_rows IS 'Rows of the listing that could not be read, and models whose values do not fit the tables.';
COMMENT ON COLUMN rejected_listing_rows.base IS 'The base whose listing contains it.';
COMMENT ON COLUMN rejected_listing_rows.why IS 'What is wrong with it.';
COMMENT ON COLUMN rejected_listing_rows.raw IS 'The row, truncated.';
COMMENT ON COLUMN rejected_listing_rows.seen IS 'When it was seen.';

CREATE TABLE builds (
    build_id INTEGER NOT NULL,
    base VARCHAR NOT NULL,
    base_commit VARCHAR,
    started TIMESTAMP,
    finished TIMESTAMP,
    outcome VARCHAR NOT NULL,
    discovered INTEGER,
    indexed INTEGER,
    unchanged INTEGER,
    skipped INTEGER,
    failed INTEGER,
    bytes_read BIGINT,
    bytes_total BIGINT,
    seconds DOUBLE,
    spec JSON,
    thresholds JSON,
    versions JSON
);
COMMENT ON TABLE builds IS 'One row per build.';
COMMENT ON COLUMN builds.build_id IS '1, 2, 3, …';
COMMENT ON COLUMN builds.base IS 'Canonical id of the base.';
COMMENT ON COLUMN builds.base_commit IS 'Commit of the base.';
COMMENT ON COLUMN builds.started IS 'When it started.';
COMMENT ON COLUMN builds.finished IS 'When it was published.';
COMMENT ON COLUMN builds.outcome IS 'finished, or stopped (finished work is kept).';
COMMENT ON COLUMN builds.discovered IS 'Number of models considered: indexed + unchanged + skipped + failed.';
COMMENT ON COLUMN builds.indexed IS 'Models read and vectorised by this build.';
COMMENT ON COLUMN builds.unchanged IS 'Models that already had a record of this commit.';
COMMENT ON COLUMN builds.skipped IS 'Models that cannot be indexed at their commit.';
COMMENT ON COLUMN builds.failed IS 'Models that will be retried.';
COMMENT ON COLUMN builds.bytes_read IS 'Bytes of checkpoints that it read.';
COMMENT ON COLUMN builds.bytes_total IS 'Total size in bytes of the weight files that it read parts of.';
COMMENT ON COLUMN builds.seconds IS 'Wall time in seconds.';
COMMENT ON COLUMN builds.spec IS 'What was computed: rank, spectra, record version, and whether samples were read; for a build that crawled, also the address of the Hub and the options of the command.';
COMMENT ON COLUMN builds.thresholds IS 'The thresholds of the flags is_unrelated and duplicate_of.';
COMMENT ON COLUMN builds.versions IS 'Versions of the relevant libraries.';

CREATE TABLE adapter_bases (
    model_id INTEGER NOT NULL,
    named VARCHAR NOT NULL,
    verdict VARCHAR NOT NULL,
    resolved_base VARCHAR NOT NULL,
    why VARCHAR NOT NULL
);
COMMENT ON TABLE adapter_bases IS 'How the base named by an adapter (adapter_config.json) was resolved: one row per adapter that names one.';
COMMENT ON COLUMN adapter_bases.model_id IS 'The adapter, see fine_tunes.';
COMMENT ON COLUMN adapter_bases.named IS 'base_model_name_or_path as written: an id, or a folder on the author''s machine.';
COMMENT ON COLUMN adapter_bases.verdict IS 'base; finetune (its change is added to that of the adapter); foreign (another base; the adapter is flagged as unrelated); unknown (treated as the base).';
COMMENT ON COLUMN adapter_bases.resolved_base IS 'The model and commit that it was resolved to; if that is itself an adapter, followed by > and the model it adapts, and so on. Empty for the base.';
COMMENT ON COLUMN adapter_bases.why IS 'Why it is foreign or unknown, or why the sum is only approximate, or what is odd about the name or revision that it gives, as a sentence; empty otherwise.';

-- Views for common questions.

CREATE VIEW models AS
SELECT
    model_id, model AS id, model, base, author, "commit", relation, claimed_by, parent, path, verified, base_cosine,
    coalesce(named.datasets, []) AS datasets,
    "read", is_copy, copy_evidence, is_unrelated, is_partly_frozen, base_grid, vector_group, adapter_kind, start, initialisation, has_spectra,
    duplicate_of, duplicate_group, delta_norm, delta_norm_error, relative_norm,
    created, modified, downloads, likes, gated, licence, licence AS license, languages, pipeline_tag, library, trigger_words,
    model_type, head_class, label_count, label_names, problem_type, dtype, weight_files, bytes_read, block_bytes,
    fine_tunes.record_key, seconds AS record_seconds, first_seen, last_seen, deleted_at_hub
FROM fine_tunes
JOIN records USING (model_id)
LEFT JOIN (
    SELECT model_id, list_sort(list(DISTINCT dataset)) AS datasets
    FROM model_datasets WHERE dataset IS NOT NULL GROUP BY model_id
) AS named USING (model_id)
WHERE status = 'indexed';
COMMENT ON VIEW models IS 'Indexed models with their datasets. The option --where is a condition on this view.';
COMMENT ON COLUMN models.model IS 'Id on the Hub (owner/name), or local:NAME for a folder of this machine.';
COMMENT ON COLUMN models.base IS 'Canonical id of the base.';
COMMENT ON COLUMN models.author IS 'Account that owns it; "local" for a folder.';
COMMENT ON COLUMN models."commit" IS 'Commit of the model that this row describes.';
COMMENT ON COLUMN models.relation IS 'finetune, adapter, merge or quantized, as claimed by the model.';
COMMENT ON COLUMN models.claimed_by IS 'Where the base is claimed: tag, alias:<id> (a tag with a mirror or a quantised copy of the base), adapter_config, config, card, name, user, folder (on this machine), or record (restored from its record).';
COMMENT ON COLUMN models.parent IS 'The model it was tuned from directly, if that is not the base.';
COMMENT ON COLUMN models.path IS 'The models from the base (not in the list) to this one (the last), according to their claims, each with its relation to the one before; its length is the number of steps.';
COMMENT ON COLUMN models.verified IS 'Whether its weights confirm the claimed base; null if that cannot be tested (adapters).';
COMMENT ON COLUMN models.base_cosine IS 'Cosine between its block matrices and the base''s; null for adapters.';
COMMENT ON COLUMN models."read" IS 'What was read of its block matrices: full, or sample (some rows of each matrix). Norms and singular values of a sample are estimates; index deepen reads the rest.';
COMMENT ON COLUMN models.is_copy IS 'Whether all deltas are zero in all that was read, see copy_evidence.';
COMMENT ON COLUMN models.copy_evidence IS 'What shows that is_copy is true: checksum (its file has the checksum of the base''s), weights (all block matrices are equal), sample (equal in all that was read, which does not prove it), untrained (an adapter that adds zero, as before training), or unmeasurable (an adapter whose change is below the rounding of float32). Null if it is not a copy.';
COMMENT ON COLUMN models.is_unrelated IS 'Whether it does not derive from this base: base_cosine is below the threshold (trained from scratch or from another model), or it is an adapter of another base.';
COMMENT ON COLUMN models.is_partly_frozen IS 'Whether it is a full fine-tune with some zero deltas.';
COMMENT ON COLUMN models.base_grid IS 'What the base had been rounded to before this model was made from it, as its weights show: nf4, or nf4 double (with double quantisation). The error of that rounding is not part of its deltas. Null if it was made from the base as it is.';
COMMENT ON COLUMN models.has_spectra IS 'Whether all singular values of its δW and W are stored (index build --spectra).';
COMMENT ON COLUMN models.duplicate_of IS 'The model_id of the earlier upload that it duplicates; null if there is none.';
COMMENT ON COLUMN models.duplicate_group IS 'The model_id of the earliest model of its group of duplicates (its own if it is the earliest); null if it has no duplicates.';
COMMENT ON COLUMN models.delta_norm IS 'Frobenius norm of all its deltas taken together; an estimate if a sample was read.';
COMMENT ON COLUMN models.delta_norm_error IS 'Standard error of delta_norm; 0 if all matrices were read whole.';
COMMENT ON COLUMN models.relative_norm IS 'delta_norm divided by the Frobenius norm of the base''s block matrices.';
COMMENT ON COLUMN models.created IS 'When the repository was created.';
COMMENT ON COLUMN models.modified IS 'When it was last changed.';
COMMENT ON COLUMN models.downloads IS 'Downloads in the last 30 days, as listed.';
COMMENT ON COLUMN models.likes IS 'Likes, as listed.';
COMMENT ON COLUMN models.gated IS 'auto or manual if access must be requested; null if it is open.';
COMMENT ON COLUMN models.licence IS 'Licence given by the card.';
COMMENT ON COLUMN models.languages IS 'Languages given by the card.';
COMMENT ON COLUMN models.pipeline_tag IS 'Task, as shown by the Hub.';
COMMENT ON COLUMN models.library IS 'Library tag: transformers, peft, sentence-transformers, …';
COMMENT ON COLUMN models.trigger_words IS 'Words that a prompt of an image or video model must contain, according to its card (instance_prompt, trigger_words).';
COMMENT ON COLUMN models.model_type IS 'model_type of its config.json.';
COMMENT ON COLUMN models.head_class IS 'Class of its head, e.g. RobertaForSequenceClassification.';
COMMENT ON COLUMN models.label_count IS 'Number of labels in its config.json.';
COMMENT ON COLUMN models.label_names IS 'Names of the labels, unless they are the default LABEL_0, LABEL_1, …';
COMMENT ON COLUMN models.problem_type IS 'problem_type of its config.json.';
COMMENT ON COLUMN models.dtype IS 'The dtype that most of its weights are stored in.';
COMMENT ON COLUMN models.weight_files IS 'The files that were read, with their LFS ids if known.';
COMMENT ON COLUMN models.bytes_read IS 'Bytes read to make the record.';
COMMENT ON COLUMN models.block_bytes IS 'Bytes of its block matrices, or of the factors of an adapter.';
COMMENT ON COLUMN models.record_key IS 'Name of its record file under records/.';
COMMENT ON COLUMN models.record_seconds IS 'Seconds spent reading and vectorising it.';
COMMENT ON COLUMN models.first_seen IS 'When a crawl first saw it.';
COMMENT ON COLUMN models.last_seen IS 'When a crawl last saw it.';
COMMENT ON COLUMN models.deleted_at_hub IS 'Whether it has since been deleted at the Hub; its record stays.';
COMMENT ON COLUMN models.model_id IS 'Integer id, unique per (model, base).';
COMMENT ON COLUMN models.id IS 'Id on the Hub (owner/name), or local:NAME for a folder of this machine; the same as model.';
COMMENT ON COLUMN models.datasets IS 'Canonical names of its datasets, sorted; empty if it names none.';
COMMENT ON COLUMN models.license IS 'The same as licence.';
COMMENT ON COLUMN models.vector_group IS 'What its vector is made of: adapter (what training did to the input side of an adapter), adapter by output (its whole change; with other adapters it is compared by its output side), or full (the change of full weights).';
COMMENT ON COLUMN models.adapter_kind IS 'Method of an adapter: LoRA, DoRA, LoHa, IA3 and others, see records.adapter_kind. Null for other models.';
COMMENT ON COLUMN models.start IS 'Where the factors A of an adapter began, null if that is not known. generator: uniform or normal (numbers of PyTorch''s CPU generator), pissa or olora (made from the base; then nothing else is known). seed: its low 32 bits. offset: numbers drawn before A of the first module; prefix: before anything that belongs to that module. with_weights: every module''s own weights were drawn as well. found: modules whose A was found where the others say, of modules. distance: norm of A - A0 by that of A0. tool: what seed and prefix tell of the program, if anything.';
COMMENT ON COLUMN models.initialisation IS 'Models with the same number have LoRA factors A that started from the same random numbers: same tool and same seed, which says nothing about their data. Null if no other model shares it.';

CREATE VIEW indexes AS
SELECT
    base, representation, version, rank, representations.vectors, length,
    coalesce(files.segments, 0) AS segments, coalesce(files.faiss_bytes, 0) AS faiss_bytes,
    coalesce(files.faiss_files, []) AS faiss_files
FROM representations
LEFT JOIN (
    SELECT base, representation, count(*) AS segments, sum(faiss_bytes)::BIGINT AS faiss_bytes,
        list(faiss_file ORDER BY segment) AS faiss_files
    FROM internal.segments GROUP BY base, representation
) AS files USING (base, representation);
COMMENT ON VIEW indexes IS 'The vectors of each (base, representation) and their FAISS files.';
COMMENT ON COLUMN indexes.base IS 'Canonical id of the base.';
COMMENT ON COLUMN indexes.representation IS 'Name: input, output, delta, seed, seed_scaled, spectrum, depth, vocabulary.';
COMMENT ON COLUMN indexes.version IS 'Version of the representation; vectors of different versions are never compared.';
COMMENT ON COLUMN indexes.rank IS 'Number of singular triplets that the vectors were computed from.';
COMMENT ON COLUMN indexes.vectors IS 'Models that have a vector.';
COMMENT ON COLUMN indexes.length IS 'Length of a vector.';
COMMENT ON COLUMN indexes.segments IS 'Number of files of exact vectors.';
COMMENT ON COLUMN indexes.faiss_bytes IS 'Total size of its files in bytes.';
COMMENT ON COLUMN indexes.faiss_files IS 'Names of its files, in the folder of this database.';

CREATE VIEW dataset_counts AS
SELECT
    base, dataset, count(DISTINCT model_id) AS models, count(DISTINCT author) AS authors,
    mode(author) AS leading_author, list_sort(list(DISTINCT raw)) AS spellings
FROM fine_tunes JOIN model_datasets USING (model_id)
WHERE status = 'indexed' AND dataset IS NOT NULL
GROUP BY base, dataset;
COMMENT ON VIEW dataset_counts IS 'Indexed models and authors of each dataset, and its spellings.';
COMMENT ON COLUMN dataset_counts.base IS 'Canonical id of the base.';
COMMENT ON COLUMN dataset_counts.dataset IS 'Canonical name.';
COMMENT ON COLUMN dataset_counts.models IS 'Indexed models that name it.';
COMMENT ON COLUMN dataset_counts.authors IS 'Number of accounts that own them.';
COMMENT ON COLUMN dataset_counts.leading_author IS 'The account with most of them.';
COMMENT ON COLUMN dataset_counts.spellings IS 'Spellings in cards and tags.';

CREATE VIEW author_counts AS
SELECT base, author, count(*) AS models, sum(downloads) AS downloads
FROM fine_tunes WHERE status = 'indexed' GROUP BY base, author;
COMMENT ON VIEW author_counts IS 'Number of indexed models of each author.';
COMMENT ON COLUMN author_counts.base IS 'Canonical id of the base.';
COMMENT ON COLUMN author_counts.author IS 'Account that owns them; "local" for folders.';
COMMENT ON COLUMN author_counts.models IS 'Its indexed models of this base.';
COMMENT ON COLUMN author_counts.downloads IS 'Their downloads in the last 30 days, as listed.';

CREATE VIEW failures AS
SELECT base, status, reason, count(*) AS models, arg_min(detail, model) AS example, min(model) AS example_model
FROM fine_tunes WHERE status IN ('skipped', 'failed') GROUP BY base, status, reason;
COMMENT ON VIEW failures IS 'Skipped and failed models by reason, with an example.';
COMMENT ON COLUMN failures.base IS 'Canonical id of the base.';
COMMENT ON COLUMN failures.status IS 'indexed, skipped (cannot be indexed at this commit), failed (will be retried), or listed (not tried yet).';
COMMENT ON COLUMN failures.reason IS 'Why it was skipped or failed, as a code to group by.';
COMMENT ON COLUMN failures.models IS 'Number of models.';
COMMENT ON COLUMN failures.example IS 'The detail of one of them.';
COMMENT ON COLUMN failures.example_model IS 'One of them.';

CREATE VIEW similar_by_representation AS
SELECT
    near.representation, asked.base, asked.model, near.rank, found.model AS neighbour,
    near.similarity, found.author, found.relation, found.datasets, asked.author <> found.author AS other_author,
    coalesce(asked.duplicate_group = found.duplicate_group, false) AS same_weights
FROM neighbours AS near
JOIN models AS asked USING (model_id)
JOIN models AS found ON found.model_id = near.neighbour_id;
COMMENT ON VIEW similar_by_representation IS 'Neighbours by name, in every published representation. Filter on representation and model, order by rank.';
COMMENT ON COLUMN similar_by_representation.representation IS 'Name of the representation.';
COMMENT ON COLUMN similar_by_representation.base IS 'Canonical id of the base.';
COMMENT ON COLUMN similar_by_representation.model IS 'The model whose neighbours these are.';
COMMENT ON COLUMN similar_by_representation.rank IS '1 for the nearest.';
COMMENT ON COLUMN similar_by_representation.neighbour IS 'The neighbour.';
COMMENT ON COLUMN similar_by_representation.similarity IS 'Similarity of the two, as shown by query similar.';
COMMENT ON COLUMN similar_by_representation.author IS 'Account of the neighbour.';
COMMENT ON COLUMN similar_by_representation.relation IS 'Relation of the neighbour to the base: finetune, adapter, merge or quantized.';
COMMENT ON COLUMN similar_by_representation.datasets IS 'Canonical names of the neighbour''s datasets, sorted.';
COMMENT ON COLUMN similar_by_representation.other_author IS 'Whether different accounts own the two.';
COMMENT ON COLUMN similar_by_representation.same_weights IS 'Whether the two are in the same group of duplicates.';

CREATE VIEW similar_models AS
SELECT * EXCLUDE (representation) FROM similar_by_representation WHERE representation = 'input';
COMMENT ON VIEW similar_models IS 'Neighbours by name, in the default representation. Filter on model, order by rank. For other representations see similar_by_representation.';
COMMENT ON COLUMN similar_models.base IS 'Canonical id of the base.';
COMMENT ON COLUMN similar_models.model IS 'The model whose neighbours these are.';
COMMENT ON COLUMN similar_models.rank IS '1 for the nearest.';
COMMENT ON COLUMN similar_models.neighbour IS 'The neighbour.';
COMMENT ON COLUMN similar_models.similarity IS 'Similarity of the two, as shown by query similar.';
COMMENT ON COLUMN similar_models.author IS 'Account of the neighbour.';
COMMENT ON COLUMN similar_models.relation IS 'Relation of the neighbour to the base: finetune, adapter, merge or quantized.';
COMMENT ON COLUMN similar_models.datasets IS 'Canonical names of the neighbour''s datasets, sorted.';
COMMENT ON COLUMN similar_models.other_author IS 'Whether different accounts own the two.';
COMMENT ON COLUMN similar_models.same_weights IS 'Whether the two are in the same group of duplicates.';

CREATE VIEW similar_pairs AS
SELECT
    first.base, first.model AS model, second.model AS neighbour, near.similarity,
    first.author <> second.author AS other_author,
    first.duplicate_of IS NOT NULL OR second.duplicate_of IS NOT NULL AS is_repeat,
    first.datasets, second.datasets AS neighbour_datasets
FROM neighbours AS near
JOIN models AS first ON first.model_id = near.model_id
JOIN models AS second ON second.model_id = near.neighbour_id
WHERE near.representation = 'input' AND (
    near.model_id < near.neighbour_id
    OR NOT EXISTS (
        SELECT 1 FROM neighbours AS back
        WHERE back.representation = 'input'
          AND back.model_id = near.neighbour_id AND back.neighbour_id = near.model_id
    ));
COMMENT ON VIEW similar_pairs IS 'Each pair of similar models once, in the default representation. ORDER BY similarity DESC gives the most similar, WHERE NOT is_repeat leaves out duplicates.';
COMMENT ON COLUMN similar_pairs.base IS 'Canonical id of the base.';
COMMENT ON COLUMN similar_pairs.model IS 'One of the two: that with the smaller model_id if each is in the list of the other.';
COMMENT ON COLUMN similar_pairs.neighbour IS 'The other model.';
COMMENT ON COLUMN similar_pairs.similarity IS 'Similarity of the two, as shown by query similar.';
COMMENT ON COLUMN similar_pairs.other_author IS 'Whether different accounts own the two.';
COMMENT ON COLUMN similar_pairs.is_repeat IS 'Whether one of the two repeats an earlier upload.';
COMMENT ON COLUMN similar_pairs.datasets IS 'Canonical names of the datasets of model, sorted.';
COMMENT ON COLUMN similar_pairs.neighbour_datasets IS 'The same for neighbour.';

CREATE VIEW likely_datasets AS
SELECT
    base, model, author, downloads, dataset, probability, agreement, predictions.authors, predictions.models AS voters,
    calibrated, answered_at
FROM predictions JOIN models USING (model_id)
WHERE rank = 1 AND dataset <> 'none of these' AND agreement >= 0.5 AND predictions.authors >= 2
  AND len(datasets) = 0 AND NOT is_copy AND NOT is_unrelated;
COMMENT ON VIEW likely_datasets IS 'Undocumented models whose neighbours agree: the most probable dataset of each stored prediction (query predict --undocumented --store) that has at least half of the votes, from at least two authors.';
COMMENT ON COLUMN likely_datasets.base IS 'Canonical id of the base.';
COMMENT ON COLUMN likely_datasets.model IS 'The model. It names no dataset.';
COMMENT ON COLUMN likely_datasets.author IS 'Account that owns it; "local" for a folder.';
COMMENT ON COLUMN likely_datasets.downloads IS 'Downloads in the last 30 days, as listed.';
COMMENT ON COLUMN likely_datasets.dataset IS 'Canonical name, or "none of these": a dataset that no voter names.';
COMMENT ON COLUMN likely_datasets.probability IS 'Expected share of this dataset among the datasets of the model.';
COMMENT ON COLUMN likely_datasets.agreement IS 'Share of all votes that name it; 0 if there are no votes.';
COMMENT ON COLUMN likely_datasets.authors IS 'Number of authors of the models that vote for it.';
COMMENT ON COLUMN likely_datasets.voters IS 'The models that vote for it, the largest vote first.';
COMMENT ON COLUMN likely_datasets.calibrated IS 'Whether the probabilities were fitted to this atlas.';
COMMENT ON COLUMN likely_datasets.answered_at IS 'When the answer was computed, UTC.';

CREATE VIEW suspicious_claims AS
SELECT base, model, author, relation, claimed_by, base_cosine, downloads, named AS names_base, why
FROM fine_tunes JOIN records USING (model_id) LEFT JOIN adapter_bases USING (model_id) WHERE is_unrelated;
COMMENT ON VIEW suspicious_claims IS 'Models that claim the base although their weights contradict it, and adapters of another base.';
COMMENT ON COLUMN suspicious_claims.base IS 'Canonical id of the base.';
COMMENT ON COLUMN suspicious_claims.model IS 'Id on the Hub (owner/name), or local:NAME for a folder of this machine.';
COMMENT ON COLUMN suspicious_claims.author IS 'Account that owns it; "local" for a folder.';
COMMENT ON COLUMN suspicious_claims.relation IS 'finetune, adapter, merge or quantized, as claimed by the model.';
COMMENT ON COLUMN suspicious_claims.claimed_by IS 'Where the base is claimed: tag, alias:<id> (a tag with a mirror or a quantised copy of the base), adapter_config, config, card, name, user, folder (on this machine), or record (restored from its record).';
COMMENT ON COLUMN suspicious_claims.base_cosine IS 'Cosine between its block matrices and the base''s; null for adapters.';
COMMENT ON COLUMN suspicious_claims.downloads IS 'Downloads in the last 30 days, as listed.';
COMMENT ON COLUMN suspicious_claims.names_base IS 'For an adapter: the base that its adapter_config.json names.';
COMMENT ON COLUMN suspicious_claims.why IS 'For an adapter: why that base does not derive from this one.';

CREATE VIEW duplicates AS
SELECT copy.base, copy.model, first.model AS first_upload, copy.author, first.author AS first_author, copy.created
FROM fine_tunes AS copy
JOIN records ON records.model_id = copy.model_id
JOIN fine_tunes AS first ON first.model_id = records.duplicate_of;
COMMENT ON VIEW duplicates IS 'Models that repeat an earlier upload.';
COMMENT ON COLUMN duplicates.base IS 'Canonical id of the base.';
COMMENT ON COLUMN duplicates.model IS 'The later upload.';
COMMENT ON COLUMN duplicates.first_upload IS 'The model that it repeats.';
COMMENT ON COLUMN duplicates.author IS 'Account of the later upload.';
COMMENT ON COLUMN duplicates.first_author IS 'Account of the first upload.';
COMMENT ON COLUMN duplicates.created IS 'When the later upload was created.';

CREATE VIEW declared_lineage AS
SELECT DISTINCT claimed.model_id, claimed.model, base, parent, found.model_id AS parent_id
FROM (
    SELECT model_id, fine_tunes.model, fine_tunes.base, regexp_extract(tag, '^base_model:(?:(?:finetune|adapter|merge|quantized):)?(.+)$', 1) AS parent
    FROM fine_tunes JOIN tags USING (model_id) WHERE tag LIKE 'base_model:%'
    UNION ALL SELECT model_id, model, base, parent FROM fine_tunes WHERE parent IS NOT NULL
) AS claimed
LEFT JOIN (SELECT model_id, model AS parent, base FROM fine_tunes) AS found USING (parent, base)
WHERE parent <> '';
COMMENT ON VIEW declared_lineage IS 'Parents that cards and tags name, including the base.';
COMMENT ON COLUMN declared_lineage.model_id IS 'Integer id, unique per (model, base) and never reused; also the id in the FAISS files.';
COMMENT ON COLUMN declared_lineage.model IS 'Id on the Hub (owner/name), or local:NAME for a folder of this machine.';
COMMENT ON COLUMN declared_lineage.base IS 'Canonical id of the base.';
COMMENT ON COLUMN declared_lineage.parent IS 'Id of the parent, as written.';
COMMENT ON COLUMN declared_lineage.parent_id IS 'The parent, if it is a model of the same base in this atlas.';

-- What licences demand of models made from a model. Data, to be extended a line at a time: a licence has the terms of
-- all patterns that it matches.
CREATE VIEW licence_terms AS
SELECT * FROM (VALUES
    ('apache-*', []), ('mit', []), ('mit-*', []), ('bsd', []), ('bsd-*', []), ('0bsd', []), ('isc', []), ('ncsa', []), ('zlib', []),
    ('unlicense', []), ('wtfpl', []), ('cc', []), ('cc0-*', []), ('cc-by-[0-9]*', []), ('pddl', []), ('odc-by', []), ('afl-*', []),
    ('artistic-*', []), ('ecl-*', []), ('bsl-*', []), ('ms-pl', []), ('postgresql', []), ('cdla-permissive-*', []), ('openmdw*', []),
    ('gpl*', ['share-alike']), ('agpl*', ['share-alike']), ('lgpl*', ['share-alike']), ('mpl-*', ['share-alike']),
    ('epl-*', ['share-alike']), ('eupl-*', ['share-alike']), ('osl-*', ['share-alike']), ('odbl', ['share-alike']), ('gfdl', ['share-alike']),
    ('cdla-sharing-*', ['share-alike']), ('cc-by-sa-*', ['share-alike']), ('cc-by-nc-sa-*', ['share-alike']),
    ('cc-by-nc-*', ['non-commercial']), ('*noncommercial*', ['non-commercial']), ('*non-commercial*', ['non-commercial']),
    ('deepfloyd-if-license', ['non-commercial']), ('apple-amlr', ['non-commercial']), ('intel-research', ['non-commercial']),
    ('cc-by-nd-*', ['no derivatives']), ('cc-by-nc-nd-*', ['no derivatives']),
    ('llama*', ['terms of Llama']), ('gemma*', ['terms of Gemma']), ('grok*', ['terms of Grok']), ('lfm*', ['terms of LFM']),
    ('*openrail*', ['use restrictions']), ('bigscience-bloom-rail-*', ['use restrictions'])
) AS listed(pattern, terms);
COMMENT ON VIEW licence_terms IS 'What licences demand of models made from a model. Licences that match no pattern are not judged.';
COMMENT ON COLUMN licence_terms.pattern IS 'Identifier of a licence on the Hub, in lower case; * stands for any text.';
COMMENT ON COLUMN licence_terms.terms IS 'Terms that the licence of a model made from it must have too; empty for permissive licences. Nothing may be made from one with "no derivatives".';

CREATE VIEW licence_differences AS
WITH steps AS (
    SELECT child.base, child.model, child.licence, parent.model AS parent, parent.licence AS parent_licence, lineage.kind, child.downloads
    FROM lineage
    JOIN fine_tunes AS child ON child.model_id = lineage.model_id
    JOIN fine_tunes AS parent ON parent.model_id = lineage.parent_id
    WHERE direction = 'known'
    UNION ALL
    SELECT fine_tunes.base, model, fine_tunes.licence, bases.base, bases.licence, relation, downloads
    FROM fine_tunes JOIN bases USING (base) JOIN records USING (model_id) WHERE NOT is_unrelated
), judged AS (
    SELECT licence, list_sort(list_distinct(flatten(list(terms)))) AS terms
    FROM (
        SELECT licence, unnest(string_split(lower(licence), ', ')) AS part
        FROM (SELECT licence FROM fine_tunes UNION SELECT licence FROM bases) AS given WHERE licence IS NOT NULL
    ) AS parts
    JOIN licence_terms ON part GLOB pattern
    GROUP BY licence
)
SELECT
    base, model, steps.licence, parent, parent_licence, kind,
    CASE
        WHEN list_contains(theirs.terms, 'no derivatives') THEN 'conflict'
        WHEN coalesce(steps.licence, '') = '' THEN 'none given'
        WHEN own.terms IS NULL OR theirs.terms IS NULL OR list_has_all(own.terms, theirs.terms) THEN 'differs'
        ELSE 'conflict'
    END AS verdict,
    list_filter(coalesce(theirs.terms, []), lambda term: term = 'no derivatives' OR NOT list_contains(coalesce(own.terms, []), term)) AS terms,
    downloads
FROM steps
LEFT JOIN judged AS own ON own.licence = steps.licence
LEFT JOIN judged AS theirs ON theirs.licence = parent_licence
WHERE coalesce(parent_licence, '') <> ''
    AND (lower(steps.licence) IS DISTINCT FROM lower(parent_licence) OR coalesce(list_contains(theirs.terms, 'no derivatives'), false));
COMMENT ON VIEW licence_differences IS 'Models with another licence than a parent (after query lineage --all) or than their base, or with none.';
COMMENT ON COLUMN licence_differences.base IS 'Canonical id of the base.';
COMMENT ON COLUMN licence_differences.model IS 'The model.';
COMMENT ON COLUMN licence_differences.licence IS 'Licence of the model; null if its card gives none.';
COMMENT ON COLUMN licence_differences.parent IS 'A parent of the model, or its base.';
COMMENT ON COLUMN licence_differences.parent_licence IS 'Licence of the parent.';
COMMENT ON COLUMN licence_differences.kind IS 'Kind of the step, see lineage; for the base the relation that the model claims.';
COMMENT ON COLUMN licence_differences.verdict IS 'conflict: the model drops a term that the parent''s licence passes on. differs: another licence that may be chosen, or one that is not judged. none given: the model names no licence.';
COMMENT ON COLUMN licence_differences.terms IS 'Terms of the parent''s licence that the model''s licence does not have, see licence_terms.';
COMMENT ON COLUMN licence_differences.downloads IS 'Downloads in the last 30 days, as listed.';

CREATE VIEW licence_conflicts AS
SELECT base, model, licence, parent, parent_licence, kind, terms, downloads FROM licence_differences WHERE verdict = 'conflict';
COMMENT ON VIEW licence_conflicts IS 'Models whose licence drops a term that the licence of a parent or of the base passes on, for example from non-commercial to apache-2.0. A person has to judge whether that is permitted.';
COMMENT ON COLUMN licence_conflicts.base IS 'Canonical id of the base.';
COMMENT ON COLUMN licence_conflicts.model IS 'The model.';
COMMENT ON COLUMN licence_conflicts.licence IS 'Licence of the model; null if its card gives none.';
COMMENT ON COLUMN licence_conflicts.parent IS 'A parent of the model, or its base.';
COMMENT ON COLUMN licence_conflicts.parent_licence IS 'Licence of the parent.';
COMMENT ON COLUMN licence_conflicts.kind IS 'Kind of the step, see lineage; for the base the relation that the model claims.';
COMMENT ON COLUMN licence_conflicts.terms IS 'The terms that are dropped, see licence_terms.';
COMMENT ON COLUMN licence_conflicts.downloads IS 'Downloads in the last 30 days, as listed.';

CREATE VIEW merged_loras AS
SELECT
    base, model, max(deltas.relative_norm) AS relative_norm, count(*) FILTER (norm > 0) AS changed,
    count(*) FILTER (norm = 0) AS untouched, min(energy) FILTER (norm > 0) AS energy
FROM fine_tunes JOIN records USING (model_id) JOIN deltas USING (model_id)
WHERE NOT is_copy AND NOT is_unrelated AND base_cosine IS NOT NULL
GROUP BY base, model
HAVING min(energy) FILTER (norm > 0) >= 0.999
    -- As many singular values as rows hold all of any change.
    AND bool_and(rows_read IS NULL OR rows_read >= 2 * len(singular_values)) FILTER (norm > 0);
COMMENT ON VIEW merged_loras IS 'Full models whose deltas all have low rank, because a LoRA was merged into the base. For ranks above the stored one use query lineage.';
COMMENT ON COLUMN merged_loras.base IS 'Canonical id of the base.';
COMMENT ON COLUMN merged_loras.model IS 'Id on the Hub (owner/name), or local:NAME for a folder of this machine.';
COMMENT ON COLUMN merged_loras.relative_norm IS 'The largest relative norm of its deltas.';
COMMENT ON COLUMN merged_loras.changed IS 'Number of matrices that it changed.';
COMMENT ON COLUMN merged_loras.untouched IS 'Number of matrices that it left unchanged.';
COMMENT ON COLUMN merged_loras.energy IS 'The smallest share of a delta''s energy that the stored singular values account for.';

CREATE VIEW rank_by_depth AS
SELECT
    base, stack, family, layer,
    count(*) FILTER (norm > 0) AS models, count(*) FILTER (has_spectra) AS with_spectra,
    CASE WHEN bool_and(rank_50 IS NOT NULL) THEN avg(nullif(rank_50, 0))
         ELSE avg(nullif(rank_50, 0)) FILTER (has_spectra) END AS rank_50,
    CASE WHEN bool_and(rank_80 IS NOT NULL) THEN avg(nullif(rank_80, 0))
         ELSE avg(nullif(rank_80, 0)) FILTER (has_spectra) END AS rank_80,
    CASE WHEN bool_and(rank_90 IS NOT NULL) THEN avg(nullif(rank_90, 0))
         ELSE avg(nullif(rank_90, 0)) FILTER (has_spectra) END AS rank_90,
    CASE WHEN bool_and(rank_95 IS NOT NULL) THEN avg(nullif(rank_95, 0))
         ELSE avg(nullif(rank_95, 0)) FILTER (has_spectra) END AS rank_95,
    CASE WHEN bool_and(rank_99 IS NOT NULL) THEN avg(nullif(rank_99, 0))
         ELSE avg(nullif(rank_99, 0)) FILTER (has_spectra) END AS rank_99,
    avg(energy) FILTER (norm > 0) AS energy, avg(measured.relative_norm) FILTER (norm > 0) AS relative_norm,
    avg(weight_rank_50) AS weight_rank_50, avg(weight_rank_80) AS weight_rank_80, avg(weight_rank_90) AS weight_rank_90,
    avg(weight_rank_95) AS weight_rank_95, avg(weight_rank_99) AS weight_rank_99
FROM (FROM deltas UNION ALL BY NAME FROM fused_matrices) AS measured
JOIN fine_tunes USING (model_id) JOIN records USING (model_id)
WHERE NOT is_copy AND NOT is_unrelated AND duplicate_of IS NULL
GROUP BY base, stack, family, layer;
COMMENT ON VIEW rank_by_depth IS 'Mean rank of δW and of W by depth, without copies, unrelated models, duplicates and zero deltas. Where some ranks are unknown only models with spectra are averaged, because the known ranks would be the small ones.';
COMMENT ON COLUMN rank_by_depth.base IS 'Canonical id of the base.';
COMMENT ON COLUMN rank_by_depth.stack IS 'encoder, decoder, text, vision and so on; empty if the base has only one stack.';
COMMENT ON COLUMN rank_by_depth.layer IS 'Block index, from 0.';
COMMENT ON COLUMN rank_by_depth.rank_50 IS 'Mean rank of δW that holds 50 % of the energy; null if unknown.';
COMMENT ON COLUMN rank_by_depth.rank_80 IS 'Mean rank of δW that holds 80 % of the energy; null if unknown.';
COMMENT ON COLUMN rank_by_depth.rank_90 IS 'Mean rank of δW that holds 90 % of the energy; null if unknown.';
COMMENT ON COLUMN rank_by_depth.rank_95 IS 'Mean rank of δW that holds 95 % of the energy; null if unknown.';
COMMENT ON COLUMN rank_by_depth.rank_99 IS 'Mean rank of δW that holds 99 % of the energy; null if unknown.';
COMMENT ON COLUMN rank_by_depth.energy IS 'Mean share of norm² that the stored singular values account for.';
COMMENT ON COLUMN rank_by_depth.relative_norm IS 'Mean norm relative to the matrix of the base.';
COMMENT ON COLUMN rank_by_depth.weight_rank_50 IS 'The same for W itself, at 50 %.';
COMMENT ON COLUMN rank_by_depth.weight_rank_80 IS 'The same for W itself, at 80 %.';
COMMENT ON COLUMN rank_by_depth.weight_rank_90 IS 'The same for W itself, at 90 %.';
COMMENT ON COLUMN rank_by_depth.weight_rank_95 IS 'The same for W itself, at 95 %.';
COMMENT ON COLUMN rank_by_depth.weight_rank_99 IS 'The same for W itself, at 99 %.';
COMMENT ON COLUMN rank_by_depth.family IS 'A family, or the name of a fused matrix (query_key_value).';
COMMENT ON COLUMN rank_by_depth.models IS 'Number of models whose δW is not zero.';
COMMENT ON COLUMN rank_by_depth.with_spectra IS 'Number of models whose records have all singular values.';

CREATE VIEW depth_of_models AS
WITH changes AS (
    SELECT
        model_id, stack, layer + 1 AS layer, sqrt(sum(relative_norm ** 2)) AS own_delta,
        sqrt(sum(sum(relative_norm ** 2)) OVER (PARTITION BY model_id, stack ORDER BY layer)) AS delta
    FROM deltas GROUP BY model_id, stack, layer
)
SELECT
    profiles.profile_id, profiles.model_id, profiles.base, profiles.subject, profiles.model, fine_tunes.author,
    profiles.probe, profiles.probe_sha256, profiles.seed, profiles.recipe, profiles.asked, profiles.is_complete,
    profiles.made, one_layer.* EXCLUDE (profile_id), changes.own_delta, changes.delta
FROM profiles
JOIN profile_layers AS one_layer USING (profile_id)
LEFT JOIN fine_tunes ON fine_tunes.model_id = profiles.model_id
LEFT JOIN changes
    ON changes.model_id = profiles.model_id AND changes.stack = one_layer.stack AND changes.layer = one_layer.layer;
COMMENT ON VIEW depth_of_models IS 'Depth profiles together with the weight changes, layer by layer.';
COMMENT ON COLUMN depth_of_models.profile_id IS 'The profile, see profiles.';
COMMENT ON COLUMN depth_of_models.model_id IS 'The model, see fine_tunes; null for a base and for an untrained twin.';
COMMENT ON COLUMN depth_of_models.base IS 'Canonical id of the base.';
COMMENT ON COLUMN depth_of_models.subject IS 'base, fine_tune, or untrained (the base''s architecture with fresh weights).';
COMMENT ON COLUMN depth_of_models.model IS 'Id of the model; of the base for a base and an untrained twin.';
COMMENT ON COLUMN depth_of_models.author IS 'Account that owns it; "local" for a folder.';
COMMENT ON COLUMN depth_of_models.probe IS 'Kind of input: random, text or image.';
COMMENT ON COLUMN depth_of_models.probe_sha256 IS 'sha256 of the token ids or pixels; profiles of different probes are not compared.';
COMMENT ON COLUMN depth_of_models.seed IS 'Seed of all draws.';
COMMENT ON COLUMN depth_of_models.recipe IS 'default, or original: the gradient descent of the original papers.';
COMMENT ON COLUMN depth_of_models.asked IS 'Sets of measures that were requested: default, recover, exact.';
COMMENT ON COLUMN depth_of_models.is_complete IS 'False if the run was stopped; the layers that are present are complete.';
COMMENT ON COLUMN depth_of_models.made IS 'When it was made.';
COMMENT ON COLUMN depth_of_models.stack IS 'encoder if the model has two stacks, else empty.';
COMMENT ON COLUMN depth_of_models.layer IS 'The output of this block, counted from 1; deltas.layer counts the same block from 0.';
COMMENT ON COLUMN depth_of_models.is_constant IS 'Whether its outputs do not depend on the input.';
COMMENT ON COLUMN depth_of_models.tolerance IS 'Noise, in units of spread, at which the best decoder that knows all other tokens loses half of the tokens; 0 if the layer is constant. It does not depend on rank.';
COMMENT ON COLUMN depth_of_models.tolerance_error IS 'Standard error of tolerance.';
COMMENT ON COLUMN depth_of_models.tolerance_own IS 'The same with noise of the layer''s own covariance, which does depend on rank.';
COMMENT ON COLUMN depth_of_models.tolerance_own_error IS 'Standard error of tolerance_own.';
COMMENT ON COLUMN depth_of_models.readable IS 'Share of tokens that a linear map, fitted on random tokens, recovers at their position; 1 at all layers of a healthy encoder.';
COMMENT ON COLUMN depth_of_models.readable_error IS 'Standard error of readable.';
COMMENT ON COLUMN depth_of_models.recovered IS 'Share of tokens recovered by 30 steps of gradient descent on embeddings from a blank start; also low if the layer is ill-conditioned.';
COMMENT ON COLUMN depth_of_models.recovered_error IS 'Standard error of recovered.';
COMMENT ON COLUMN depth_of_models.recovered_seed IS 'The same by the method of the original papers (index profile --recipe original).';
COMMENT ON COLUMN depth_of_models.recovered_seed_error IS 'Standard error of recovered_seed.';
COMMENT ON COLUMN depth_of_models.closer IS 'Share of sequences whose recovered input gives a closer output than a shifted input does: the criterion of the original papers.';
COMMENT ON COLUMN depth_of_models.closer_error IS 'Standard error of closer.';
COMMENT ON COLUMN depth_of_models.closer_ratio IS 'Factor by which it is closer, on average.';
COMMENT ON COLUMN depth_of_models.closer_ratio_error IS 'Standard error of closer_ratio.';
COMMENT ON COLUMN depth_of_models.verified IS 'Share of tokens in sequences that were recovered exactly, with a certificate (index profile --exact). It is 1 nearly everywhere, so it does not measure depth.';
COMMENT ON COLUMN depth_of_models.verified_error IS 'Standard error of verified.';
COMMENT ON COLUMN depth_of_models.reach IS 'Effective number of input positions that an output depends on: the exponential of the entropy of squared gradients.';
COMMENT ON COLUMN depth_of_models.reach_error IS 'Standard error of reach.';
COMMENT ON COLUMN depth_of_models.own IS 'Share of its own position in the squared gradients.';
COMMENT ON COLUMN depth_of_models.own_error IS 'Standard error of own.';
COMMENT ON COLUMN depth_of_models.start_share IS 'Share of the first quarter of the input in the squared gradients.';
COMMENT ON COLUMN depth_of_models.start_share_error IS 'Standard error of start_share.';
COMMENT ON COLUMN depth_of_models.cka IS 'Linear CKA with the same layer of the base on the same probe.';
COMMENT ON COLUMN depth_of_models.cka_error IS 'Standard error of cka.';
COMMENT ON COLUMN depth_of_models.drift IS '‖h − h_base‖ / ‖h_base − its mean‖ on the same probe.';
COMMENT ON COLUMN depth_of_models.drift_error IS 'Standard error of drift.';
COMMENT ON COLUMN depth_of_models.image_error IS '‖found − truth‖ / ‖truth − its mean‖ for images recovered from the output of this layer.';
COMMENT ON COLUMN depth_of_models.image_error_error IS 'Standard error of image_error.';
COMMENT ON COLUMN depth_of_models.spread IS 'The unit of noise: the median over positions of the rms deviation of outputs from their mean.';
COMMENT ON COLUMN depth_of_models.own_delta IS 'Root of the sum of the squared relative norms of the deltas of this layer; null for bases.';
COMMENT ON COLUMN depth_of_models.delta IS 'The same for this layer and all layers below it.';

CREATE MACRO nearest(name, k := 10) AS TABLE
SELECT rank, neighbour AS model, similarity, author, relation, datasets
FROM similar_models
WHERE model = name AND rank <= k
ORDER BY rank;
COMMENT ON MACRO TABLE nearest IS 'SELECT * FROM nearest(''owner/name''): the models most similar to one, nearest first.';

CREATE MACRO similarity_error(of_base, of_representation, group_of_one, group_of_other) AS TABLE
    SELECT coalesce(sum(moves), 0.0) / 2 AS error
    FROM (VALUES (group_of_one), (group_of_other)) AS both_groups(named)
    JOIN (
        SELECT vector_group, coalesce(avg(1.5 / greatest(2.0, least(votes, datasets))) FILTER (votes > 0), 0.75) AS moves
        FROM internal.centres
        WHERE base = of_base AND representation = of_representation
        GROUP BY vector_group
    ) AS centre_of ON centre_of.vector_group = named;
COMMENT ON MACRO TABLE similarity_error IS 'SELECT error FROM similarity_error(base, representation, group, other group): how far the similarity of two models of these groups (records.vector_group) may move as models are added, because the centre moves: for two full fine-tunes 1.5/n, where n is the smaller of the votes in the centre and the datasets that its models name, at least 2; half of it for a full fine-tune and an adapter, 0 for two adapters.';

CREATE MACRO background(of_base, of_representation, group_of_one, group_of_other, found) AS TABLE
    WITH points AS (
        SELECT similarity, share, share_high, pairs,
            lag(similarity) OVER (ORDER BY similarity) AS lower, lag(share) OVER (ORDER BY similarity) AS lower_share,
            lag(share_high) OVER (ORDER BY similarity) AS lower_high
        FROM null_similarity
        WHERE base = of_base AND representation = of_representation
          AND one_group = least(group_of_one, group_of_other) AND other_group = greatest(group_of_one, group_of_other)
    )
    SELECT
        CASE
            WHEN count(*) = 0 OR found IS NULL THEN NULL
            WHEN min(similarity) > found THEN 1.0
            WHEN max(similarity) < found THEN 1.0 / (1 + min(pairs))
            ELSE max(CASE
                WHEN similarity = found THEN share
                WHEN lower < found AND similarity > found
                THEN share + (lower_share - share) * (similarity - found) / (similarity - lower)
            END)
        END AS share,
        CASE
            WHEN count(share_high) = 0 OR found IS NULL THEN NULL
            WHEN min(similarity) > found THEN 1.0
            WHEN max(similarity) < found THEN min(share_high)
            ELSE max(CASE
                WHEN similarity = found THEN share_high
                WHEN lower < found AND similarity > found
                THEN share_high + (lower_high - share_high) * (similarity - found) / (similarity - lower)
            END)
        END AS share_high
    FROM points;
COMMENT ON MACRO TABLE background IS 'SELECT share, share_high FROM background(base, representation, group, other group, similarity): the share of pairs of unrelated models that are at least as similar, and the upper end of its 95 % interval; null if too few pairs, or authors, are known.';

COMMIT;
