-- The atlas's database: every table, view and macro, with a comment on each column. A comment of a table, view or macro is
-- above it, and one of a column behind it, or, in a view, above it with its name. Other columns of a view have the
-- comment of the table that they come from. The database keeps them (`COMMENT ON`), for `query schema` and SQL clients.
-- A new atlas.duckdb is made of these statements; no other code creates tables, views or macros.
-- The schema main is for queries; the schema internal is the program's own bookkeeping.
-- Times are UTC. A row of fine_tunes is one (model, base) pair; its integer model_id ties everything else to it.
-- It is one transaction: otherwise DuckDB would write to disk after each statement.

BEGIN TRANSACTION;

CREATE SCHEMA internal;

-- One row: the schema version of this file and the publish that made it.
CREATE TABLE atlas_info (
    schema_version INTEGER NOT NULL,  -- Version of schema.sql. A reader refuses every other version.
    generation BIGINT NOT NULL,  -- Grows by one with every publish.
    published TIMESTAMP,  -- When this generation was published.
    tool_version VARCHAR,  -- Version of vectors-in-the-wild that published it.
    next_model_id INTEGER NOT NULL  -- The next free model_id; ids are never reused.
);

-- Base models: one row each.
CREATE TABLE bases (
    base VARCHAR NOT NULL,  -- Canonical id on the Hub, e.g. FacebookAI/roberta-base.
    "commit" VARCHAR NOT NULL,  -- Commit whose weights the deltas are taken against.
    aliases VARCHAR[] NOT NULL,  -- Other ids of this base: old short ids, and ids by which users requested it.
    model_type VARCHAR,  -- model_type of its config.json.
    architecture VARCHAR,  -- The architecture data file that describes its tensors.
    layers STRUCT(stack VARCHAR, layers INTEGER)[],  -- Number of layers of each stack; the name is empty if there is
        -- only one stack.
    deltas VARCHAR[],  -- Names of its deltas, in the order in which vectors concatenate them.
    block_bytes BIGINT,  -- Bytes of its block matrices as stored.
    config JSON,  -- Its config.json.
    licence VARCHAR,  -- Licence given by its card; null if the card gives none, or the Hub has not been asked.
    licence_name VARCHAR,  -- Name that the card gives to a licence for which the Hub has no identifier (other).
    licence_link VARCHAR,  -- Address or file of that licence, as the card gives it.
    words VARCHAR[]  -- The word that each row of its input embedding stands for, of the rows that are read, in lower
        -- case and without accents; empty for a piece of a word, a sign or a number. Null if they are not known.
);

-- Every model found for a base, indexed or not: one row per (model, base).
CREATE TABLE fine_tunes (
    model_id INTEGER NOT NULL,  -- Integer id, unique per (model, base) and never reused; also the id in the FAISS
        -- files.
    model VARCHAR NOT NULL,  -- Id on the Hub (owner/name), local:NAME for a folder of this machine, or SCHEME:… of another source.
    base VARCHAR NOT NULL,  -- Canonical id of the base.
    author VARCHAR NOT NULL,  -- Account that owns it; "local" for a folder without a label of its own.
    "commit" VARCHAR,  -- Commit of the model that this row describes.
    subfolder VARCHAR NOT NULL DEFAULT '',  -- Requested folder in the repository; empty for the root.
    status VARCHAR NOT NULL,  -- indexed, skipped (cannot be indexed at this commit), failed (will be retried), or
        -- listed (not tried yet).
    reason VARCHAR,  -- Why it was skipped or failed, as a code to group by.
    detail VARCHAR,  -- Why it was skipped or failed, as a sentence.
    attempts INTEGER,  -- Number of attempts.
    tried TIMESTAMP,  -- Time of the last attempt.
    relation VARCHAR NOT NULL,  -- finetune, adapter, merge or quantized, as claimed by the model.
    claimed_by VARCHAR,  -- Where the base is claimed: tag, alias:<id> (a tag with a mirror or a quantised copy of the
        -- base), adapter_config, config, card, name, user, folder (on this machine), or record (restored from its
        -- record).
    parent VARCHAR,  -- The model it was tuned from directly, if that is not the base.
    path STRUCT(relation VARCHAR, model VARCHAR)[],  -- The models from the base (not in the list) to this one (the
        -- last), according to their claims, each with its relation to the one before: finetune, adapter, merge,
        -- quantized, or copy (another name of the base's weights). Its length is the number of steps.
    created TIMESTAMP,  -- When the repository was created.
    modified TIMESTAMP,  -- When it was last changed.
    downloads BIGINT,  -- Downloads in the last 30 days, as listed.
    likes BIGINT,  -- Likes, as listed.
    gated VARCHAR,  -- auto or manual if access must be requested; null if it is open.
    private BOOLEAN,  -- Whether only its owner can see it on the Hub; null if unknown.
    licence VARCHAR,  -- Licence given by the card.
    licence_name VARCHAR,  -- Name that the card gives to a licence for which the Hub has no identifier (other).
    licence_link VARCHAR,  -- Address or file of that licence, as the card gives it.
    languages VARCHAR[],  -- Languages given by the card.
    pipeline_tag VARCHAR,  -- Task, as shown by the Hub.
    library VARCHAR,  -- Library tag: transformers, peft, sentence-transformers, …
    trigger_words VARCHAR[],  -- Words that a prompt of an image or video model must contain, according to its card
        -- (instance_prompt, trigger_words). Null if it names none.
    record_key VARCHAR,  -- Name of its record file under records/.
    run_key VARCHAR,  -- What tells its training run from others, if its folder, its file or its name is that of a
        -- checkpoint: a digest of the run's folder, or the name of the model without the number.
    checkpoint_number BIGINT,  -- The number in the name of that folder or file, in steps or epochs; null for the last.
    first_seen TIMESTAMP,  -- When a crawl, or the listing of a tree, first saw it.
    last_seen TIMESTAMP,  -- When a crawl last saw it, or the listing of a tree found it changed.
    deleted_at_hub BOOLEAN NOT NULL DEFAULT false,  -- Whether it has since left its source: been deleted at the
        -- Hub, or gone from the tree in which a build found it. Its record stays, and it comes back if it returns.
    oddities VARCHAR[],  -- Malformed fields of its listing row and how they were interpreted.
    fingerprint VARCHAR  -- Digest of the inputs of this row: a publish rewrites a row only when it changes.
);

-- Measurements of the weights of an indexed model: one row per record.
CREATE TABLE records (
    model_id INTEGER NOT NULL,  -- The model, see fine_tunes.
    record_key VARCHAR NOT NULL,  -- Name of its record file under records/.
    verified BOOLEAN,  -- Whether its weights confirm the claimed base; null if that cannot be tested (adapters).
    base_cosine DOUBLE,  -- Cosine between its block matrices and the base's; null for adapters.
    "read" VARCHAR NOT NULL DEFAULT 'full',  -- What was read of its block matrices: full, or sample (some rows of each
        -- matrix). Norms and singular values of a sample are estimates; index deepen reads the rest.
    is_copy BOOLEAN NOT NULL DEFAULT false,  -- Whether all deltas are zero in all that was read, see copy_evidence.
    copy_evidence VARCHAR,  -- What shows that is_copy is true: checksum (its file has the checksum of the base's),
        -- weights (all block matrices are equal), sample (equal in all that was read, which does not prove it),
        -- untrained (an adapter that adds zero, as before training), or unmeasurable (an adapter whose change is below
        -- the rounding of float32). Null if it is not a copy.
    is_unrelated BOOLEAN NOT NULL DEFAULT false,  -- Whether it does not derive from this base: base_cosine is below the
        -- threshold (trained from scratch or from another model), or it is an adapter of another base.
    is_partly_frozen BOOLEAN NOT NULL DEFAULT false,  -- Whether it is a full fine-tune with some zero deltas.
    base_grid VARCHAR,  -- The 4-bit form to which the base had been rounded before this model was made from it, as its
        -- weights show: nf4, or nf4 double (with double quantisation). The error of that rounding is not part of its
        -- deltas. Null if it was made from the base as it is.
    change VARCHAR,  -- What was done to the base's weights, by the weights alone: trained, adapter, adapter merged,
        -- unchanged, fact edited, abliterated, pruned, quantised, noise added, embedding rows reset, embedding rows
        -- added, layers moved, rearranged, untrained or broken (docs/guide/kinds.md). Null if its record has no signs of it.
    change_probability DOUBLE,  -- Probability of change, by how far its test is from the scores of ordinary models.
    change_evidence VARCHAR,  -- Why, in words.
    vector_group VARCHAR NOT NULL DEFAULT 'full',  -- What its vector is made of: adapter (of what training did to the
        -- input side of an adapter, whose start is known or not random), adapter by output (of its whole change, which
        -- holds the random numbers that it began with; with other adapters it is compared by its output side), or full
        -- (of the change of full weights: also a LoRA merged into these, a partly frozen model, an adapter of a full
        -- fine-tune, one that replaces whole matrices). Only from full ones a centre is subtracted, see
        -- internal.centres.
    adapter_kind VARCHAR,  -- Method of an adapter: LoRA, rsLoRA, DoRA, PiSSA, OLoRA, AdaLoRA, LoHa, LoKr, OFT, BOFT,
        -- HRA, IA3, VeRA, FourierFT, or whole matrices (it replaces them). Null for other models.
    start STRUCT(  -- Where the factors A of an adapter began, null if that is not known. generator: uniform or normal
        -- (numbers of PyTorch's CPU generator), pissa or olora (made from the base; then nothing else is known). seed:
        -- its low 32 bits. offset: numbers drawn before A of the first module; prefix: before anything that belongs to
        -- that module. with_weights: every module's own weights were drawn as well. found: modules whose A was found
        -- where the others say, of modules. distance: norm of A - A0 by that of A0. tool: what seed and prefix tell of
        -- the program, if anything.
        generator VARCHAR, seed BIGINT, "offset" BIGINT, prefix BIGINT, with_weights BOOLEAN, found INTEGER, modules INTEGER, distance DOUBLE, tool VARCHAR
    ),
    passed_over VARCHAR[],  -- Parts of an adapter that were not read, with their number: factors of convolutions, of
        -- fused experts, of bare parameters; then sentences on settings that its files leave open, and what was
        -- assumed. Null if there are none.
    signature VARCHAR,  -- Its uncentred vector hashed to 120 bytes (base64). Only models with similar signatures are
        -- compared matrix by matrix to find duplicates.
    row_space VARCHAR,  -- Sketch (base64) of the row space of its LoRA factors A. Models whose A started from the same
        -- random numbers have similar sketches. Null if the change is not a LoRA, merged or not.
    token_class VARCHAR,  -- What its input embedding says of its training text: exact (rows that no text touched can be
        -- recognised with certainty), statistical (only likely), or frozen (no row moved). Null for adapters, and where
        -- the embedding cannot be compared with the base's. See query trace.
    token_codes VARCHAR,  -- How far each row of the input embedding that was read moved, a byte each (base64): 0
        -- untouched, 254 unsure, 255 missing, else a logarithm of the size.
    token_is_share BOOLEAN,  -- Whether token_codes stand for shares of a row's change that lie off the directions
        -- common to all rows (of a tied language-model head), not for sizes.
    token_scale DOUBLE,  -- The factor by which weight decay shrank all rows of the input embedding.
    token_rows INTEGER,  -- Number of rows of its input embedding.
    base_token_rows INTEGER,  -- Number of rows of the base's input embedding, which decides which are read.
    position_rows INTEGER,  -- Number of rows of its position embeddings up to the last that moved; null if not known.
    has_pairs BOOLEAN,  -- Whether the second token type occurred, as for pairs of texts; null if not known.
    initialisation INTEGER,  -- Models with the same number have LoRA factors A that started from the same random
        -- numbers: same tool and same seed, which says nothing about their data. The number is the model_id of the
        -- first such model; null if no other model shares it.
    has_spectra BOOLEAN NOT NULL DEFAULT false,  -- Whether all singular values of its δW and W are stored (index build
        -- --spectra).
    duplicate_group INTEGER,  -- The model_id of the earliest model of its group of duplicates (its own if it is the
        -- earliest); null if it has no duplicates.
    duplicate_of INTEGER,  -- The model_id of the earlier upload that it duplicates; null if there is none.
    delta_norm DOUBLE,  -- Frobenius norm of all its deltas taken together; an estimate if a sample was read. Null for an
        -- adapter whose file does not say its alpha: then the norms of its deltas are known up to one factor.
    delta_norm_error DOUBLE NOT NULL DEFAULT 0,  -- Standard error of delta_norm; 0 if all matrices were read whole.
    relative_norm DOUBLE,  -- delta_norm divided by the Frobenius norm of the base's block matrices.
    model_type VARCHAR,  -- model_type of its config.json.
    head_class VARCHAR,  -- Class of its head, e.g. RobertaForSequenceClassification.
    label_count INTEGER,  -- Number of labels in its config.json.
    label_names VARCHAR[],  -- Names of the labels, unless they are the default LABEL_0, LABEL_1, …
    problem_type VARCHAR,  -- problem_type of its config.json.
    dtype VARCHAR,  -- The dtype that most of its weights are stored in; fp8 or mlx (8 bits) if they are codes and
        -- scales, which adds the noise of that rounding to its change.
    weight_files STRUCT(  -- The files that were read, with their LFS ids if known.
        name VARCHAR, size BIGINT, sha256 VARCHAR, format VARCHAR
    )[],
    bytes_read BIGINT,  -- Bytes read to make the record.
    block_bytes BIGINT,  -- Bytes of its block matrices, or of the factors of an adapter.
    seconds DOUBLE,  -- Seconds spent reading and vectorising it.
    device VARCHAR,  -- Where the SVD ran: cpu or cuda.
    made TIMESTAMP,  -- When the record was made.
    run_group INTEGER,  -- Checkpoints with the same number belong to one training run, by the folder that they lie in, the
        -- name, or the start of their log. It is the model_id of the first of them; null if it is alone.
    run_place INTEGER,  -- Its place among them, from 1 for the earliest checkpoint.
    is_earlier_checkpoint BOOLEAN NOT NULL DEFAULT false,  -- Whether a later checkpoint of its run is indexed. Statistics
        -- count the last one for the run.
    training_tool VARCHAR,  -- The program that trained it, by the files that it wrote beside the weights: transformers,
        -- trl, axolotl, LLaMA-Factory, ms-swift, torchtune, mlx-lm, kohya. This and the next columns are null if no such
        -- file says it; nothing of them is verified.
    run VARCHAR,  -- Name of the training run.
    step BIGINT,  -- Steps that had been done when the weights were saved.
    epoch DOUBLE,  -- The same in epochs.
    train_loss DOUBLE,  -- Last training loss that was logged.
    eval_loss DOUBLE,  -- Last validation loss that was logged.
    learning_rate DOUBLE,  -- Learning rate, as set.
    stated_base VARCHAR,  -- The model that was tuned, as the files call it, without the path of a folder.
    training JSON  -- Everything that the files beside the weights, the settings of an adapter and the header of the
        -- weights say of the training: the columns above, datasets, data_files (those of them that are files or folders),
        -- max_steps, epochs, batch_size, accumulation, weight_decay, warmup, optimizer, scheduler, seed, length, method,
        -- stage, rank, alpha, best_metric, best_checkpoint, licence, author, trigger, tags (frequent words of captions),
        -- run_id and log (what checkpoints of one run share: the tool's id of it, the first logged steps with loss and
        -- norm of the gradient), settings (every other one, by its name) and read (the files). Without paths, secrets and names of people.
);

-- Every tag at the Hub, as written (control characters are escaped).
CREATE TABLE tags (
    model_id INTEGER NOT NULL,  -- The model, see fine_tunes.
    tag VARCHAR NOT NULL  -- The tag.
);

-- Datasets that a model names, each under one canonical name.
CREATE TABLE model_datasets (
    model_id INTEGER NOT NULL,  -- The model, see fine_tunes.
    dataset VARCHAR,  -- Canonical name: glue, glue/mrpc, squad, owner/name; null if the text is not a dataset name.
    parent VARCHAR,  -- The dataset that it is a subtask of: glue for glue/mrpc. The model also has a row for the
        -- parent.
    raw VARCHAR NOT NULL,  -- The name as written in the card or tag.
    source VARCHAR NOT NULL  -- Where it is written: tag, card, model-index, readme (the sentence of the tool that
        -- tuned it; read only if the others name none), or training (the files that the tool wrote beside the weights).
);

-- Evaluation results reported in the model-index of the card.
CREATE TABLE evaluations (
    model_id INTEGER NOT NULL,  -- The model, see fine_tunes.
    task VARCHAR,  -- Task type, e.g. text-classification.
    dataset VARCHAR,  -- Canonical dataset name, if there is one.
    dataset_raw VARCHAR,  -- The dataset as written.
    config VARCHAR,  -- Configuration of the dataset, e.g. mrpc.
    split VARCHAR,  -- Dataset split that was used.
    metric VARCHAR,  -- Metric type, e.g. accuracy.
    "value" DOUBLE,  -- Its value; null if it is not a number.
    verified BOOLEAN  -- Whether the Hub verified it.
);

-- Weight changes: one row per δW, that is per (stack, layer, family) of a model.
CREATE TABLE deltas (
    model_id INTEGER NOT NULL,  -- The model, see fine_tunes.
    stack VARCHAR NOT NULL,  -- encoder, decoder, text, vision and so on; empty if the base has only one stack.
    layer INTEGER NOT NULL,  -- Block index, from 0.
    family VARCHAR NOT NULL,  -- query, key, value, output, gate, feedforward1, feedforward2, cross_query …
    out_features INTEGER NOT NULL,  -- Rows of δW.
    in_features INTEGER NOT NULL,  -- Columns of δW.
    rows_read INTEGER,  -- How many rows of δW were read (of matrices that checkpoints store transposed: columns); null
        -- for all. Of a sample, norm and singular values are estimates.
    norm FLOAT NOT NULL,  -- Frobenius norm of δW.
    norm_error FLOAT NOT NULL DEFAULT 0,  -- Standard error of norm; 0 if all rows were read.
    relative_norm FLOAT NOT NULL,  -- norm divided by the Frobenius norm of the base's matrix.
    energy FLOAT NOT NULL,  -- Share of norm² that the stored singular values account for; of a sample, the share of the
        -- rows that were read, which is larger.
    singular_values FLOAT[] NOT NULL,  -- The largest singular values of δW, descending.
    rank_50 INTEGER,  -- Smallest rank that holds 50 % of the energy; null if it exceeds the stored singular values.
    rank_80 INTEGER,  -- Smallest rank that holds 80 % of the energy, if known.
    rank_90 INTEGER,  -- Smallest rank that holds 90 % of the energy, if known.
    rank_95 INTEGER,  -- Smallest rank that holds 95 % of the energy, if known.
    rank_99 INTEGER,  -- Smallest rank that holds 99 % of the energy, if known.
    weight_rank_50 INTEGER,  -- The same for W itself, at 50 %; null if its spectrum is not stored (index build
        -- --spectra).
    weight_rank_80 INTEGER,  -- The same for W itself, at 80 %, if known.
    weight_rank_90 INTEGER,  -- The same for W itself, at 90 %, if known.
    weight_rank_95 INTEGER,  -- The same for W itself, at 95 %, if known.
    weight_rank_99 INTEGER  -- The same for W itself, at 99 %, if known.
);

-- Matrices that the base stores fused (such as c_attn of GPT-2), measured as a whole; only for records with spectra.
CREATE TABLE fused_matrices (
    model_id INTEGER NOT NULL,  -- The model, see fine_tunes.
    stack VARCHAR NOT NULL,  -- encoder, decoder, text, vision and so on; empty if the base has only one stack.
    layer INTEGER NOT NULL,  -- Block index, from 0.
    family VARCHAR NOT NULL,  -- Names of its parts: query_key_value, gate_feedforward1, …
    families VARCHAR[] NOT NULL,  -- The families that it consists of; each also has its own row in deltas.
    out_features INTEGER NOT NULL,  -- Rows of δW, summed over its parts.
    in_features INTEGER NOT NULL,  -- Columns of δW.
    norm FLOAT NOT NULL,  -- Frobenius norm of δW.
    rank_50 INTEGER,  -- Smallest rank that holds 50 % of the energy of δW; 0 if δW is zero.
    rank_80 INTEGER,  -- Smallest rank that holds 80 % of the energy of δW; 0 if δW is zero.
    rank_90 INTEGER,  -- Smallest rank that holds 90 % of the energy of δW; 0 if δW is zero.
    rank_95 INTEGER,  -- Smallest rank that holds 95 % of the energy of δW; 0 if δW is zero.
    rank_99 INTEGER,  -- Smallest rank that holds 99 % of the energy of δW; 0 if δW is zero.
    weight_rank_50 INTEGER,  -- The same for W itself, at 50 %.
    weight_rank_80 INTEGER,  -- The same for W itself, at 80 %.
    weight_rank_90 INTEGER,  -- The same for W itself, at 90 %.
    weight_rank_95 INTEGER,  -- The same for W itself, at 95 %.
    weight_rank_99 INTEGER  -- The same for W itself, at 99 %.
);

-- Published vectors: one row per (base, representation). The view indexes describes them.
CREATE TABLE representations (
    base VARCHAR NOT NULL,  -- Canonical id of the base.
    representation VARCHAR NOT NULL,  -- Name, as `index represent` takes it.
    version INTEGER NOT NULL,  -- Version of the representation; vectors of different versions are never compared.
    rank INTEGER NOT NULL,  -- Number of singular triplets that the vectors were computed from.
    length INTEGER NOT NULL,  -- Length of a vector.
    vectors INTEGER NOT NULL,  -- Number of models with a vector (a copy of the base has none).
    per_delta BOOLEAN NOT NULL,  -- Whether a vector concatenates equally long blocks in the order of bases.deltas.
    blocks INTEGER NOT NULL,  -- Number of blocks, where similarity is the mean cosine of the blocks that both models
        -- changed; 0 where it is the cosine of the whole vector. A vocabulary vector has two, and each model has only
        -- one of them: sizes of changes, or shares of the change of a tied head.
    budget INTEGER,  -- Requested length of a vector (--vector-length), approximately; null if none was requested.
    centre VARCHAR,  -- Version of the centre that was subtracted from every vector, see internal.centres; null if none
        -- was. Centred vectors are stored in 16 bits.
    faiss_file VARCHAR NOT NULL,  -- Name of the FAISS file of all vectors, in the folder of this database. A file is
        -- never changed: a publish that changes vectors writes another.
    faiss_sha256 VARCHAR NOT NULL,  -- sha256 of that file, verified before it is loaded.
    faiss_bytes BIGINT NOT NULL  -- Its size in bytes.
);

-- Models whose vectors have zero blocks, because they left some matrices unchanged (adapters, partly frozen models).
--   Models that are not listed have all blocks.
CREATE TABLE internal.vector_masks (
    base VARCHAR NOT NULL,  -- Canonical id of the base.
    representation VARCHAR NOT NULL,  -- Name of the representation.
    changed VARCHAR NOT NULL,  -- One digit per block, in the order of bases.deltas: 1 if the matrix was changed.
    model_ids INTEGER[] NOT NULL  -- The models with this pattern, see fine_tunes.
);

-- The centre that is subtracted from every block before the block is rescaled to unit norm: a mean block of the full
--   fine-tunes, times (votes - 2)/votes, or 0 up to two votes. An author has one vote, and models of several authors
--   that are more alike than most share votes. It is recomputed only when the group has grown by half. Nothing is
--   subtracted from adapters.
CREATE TABLE internal.centres (
    base VARCHAR NOT NULL,  -- Canonical id of the base.
    representation VARCHAR NOT NULL,  -- Name of the representation.
    vector_group VARCHAR NOT NULL,  -- full, see records.vector_group.
    block INTEGER NOT NULL,  -- Number of the block, from 0, in the order of bases.deltas.
    models INTEGER NOT NULL,  -- Models of the group when the centre was computed, without copies, unrelated models and
        -- duplicates.
    votes DOUBLE NOT NULL,  -- Number of votes of the models that changed the matrix: at most the number of their
        -- authors, and fewer if models of several authors are more alike than most.
    datasets INTEGER NOT NULL,  -- How many different sets of datasets its models named when the centre was computed; of
        -- models that named none, each author counts as one.
    numbers FLOAT[] NOT NULL  -- The block of the centre.
);

-- The models that a centre was computed from, as they were then; a later publish may have changed them.
CREATE TABLE internal.centre_members (
    base VARCHAR NOT NULL,  -- Canonical id of the base.
    representation VARCHAR NOT NULL,  -- Name of the representation.
    vector_group VARCHAR NOT NULL,  -- full.
    model_id INTEGER NOT NULL,  -- The model, see fine_tunes.
    record_key VARCHAR NOT NULL,  -- Its record at that time.
    vote VARCHAR NOT NULL  -- Whose vote it was part of: its author's.
);

-- The null distribution of similarity: that of pairs of unrelated models, by different authors and with no dataset in
--   common (both name some). Each row is one point of the distribution; there are no rows where there are too few
--   pairs. Recomputed whenever the centre changes or a group has grown by half.
CREATE TABLE null_similarity (
    base VARCHAR NOT NULL,  -- Canonical id of the base.
    representation VARCHAR NOT NULL,  -- Name of the representation.
    one_group VARCHAR NOT NULL,  -- Group of one of the two models, see records.vector_group; the first in alphabetical
        -- order.
    other_group VARCHAR NOT NULL,  -- Group of the other model.
    pairs BIGINT NOT NULL,  -- Number of pairs that were compared.
    similarity FLOAT NOT NULL,  -- A similarity.
    share DOUBLE NOT NULL,  -- Share of pairs that are at least as similar: (1 + their number)/(1 + pairs).
    share_high DOUBLE  -- Upper end of the 95 % interval of share, by leaving out authors; null if there are too few
        -- authors.
);

-- How many models there were when the null distributions were computed. These are computed again once a group has grown
--   by half.
CREATE TABLE internal.null_groups (
    base VARCHAR NOT NULL,  -- Canonical id of the base.
    representation VARCHAR NOT NULL,  -- Name of the representation.
    vector_group VARCHAR NOT NULL,  -- A group, see records.vector_group.
    models BIGINT NOT NULL  -- Its models that name a dataset, without copies, unrelated models and duplicates.
);

-- The 50 nearest models of each model, per published representation.
CREATE TABLE neighbours (
    representation VARCHAR NOT NULL,  -- Name of the representation.
    model_id INTEGER NOT NULL,  -- The model whose neighbours these are, see fine_tunes.
    rank INTEGER NOT NULL,  -- 1 for the nearest.
    neighbour_id INTEGER NOT NULL,  -- The neighbour, see fine_tunes.
    similarity FLOAT NOT NULL  -- Mean cosine of the blocks that both models changed; for representations without
        -- blocks, the cosine of the vectors. The macro background says how unusual a similarity is.
);

-- Pairs of similar models whose deltas were compared matrix by matrix. Duplicate groups consist of the equal ones.
CREATE TABLE internal.compared_deltas (
    model_id INTEGER NOT NULL,  -- The model with the smaller id, see fine_tunes.
    other_id INTEGER NOT NULL,  -- The other model.
    difference DOUBLE NOT NULL  -- The larger of the relative difference of any norm and 1 − cosine of the deltas; 0 if
        -- rounding to another dtype explains the difference.
);

-- The parents of each model, inferred from the weights: one row per parent (query lineage --all).
CREATE TABLE lineage (
    model_id INTEGER NOT NULL,  -- The model, see fine_tunes.
    record_key VARCHAR NOT NULL,  -- The record that the answer was computed from; a publish deletes the row once the
        -- model has another record.
    parent_id INTEGER,  -- The parent, see fine_tunes; null for the base, or if the parent is not in the atlas.
    kind VARCHAR NOT NULL,  -- tuned from the base, continued, "continued, or a run with the same data and seed", merge,
        -- LoRA merged, copy, recast, quantised copy, untrained adapter, or unrelated.
    method VARCHAR,  -- For a merge: linear, task arithmetic, slerp, layer by layer (a different recipe in each matrix),
        -- or "ties or dare".
    coefficient DOUBLE NOT NULL,  -- Weight of the parent; 1 except for merges.
    "left" DOUBLE NOT NULL,  -- Residual: share of the energy of its change that its parents together do not explain.
    card VARCHAR NOT NULL,  -- Comparison with the card: confirmed, contradicted, not declared, or "unsure" if
        -- probability is below 0.9.
    direction VARCHAR NOT NULL,  -- known, or unknown if neither the weights nor the dates show which of the two models
        -- came first.
    evidence VARCHAR,  -- The evidence, in a few words.
    same VARCHAR[] NOT NULL,  -- Models whose weights cannot be distinguished from the parent.
    bytes_read BIGINT NOT NULL,  -- Bytes of weights that were read for the answer, summed over all parents.
    answered_at TIMESTAMP NOT NULL,  -- When the answer was computed, UTC.
    probability DOUBLE NOT NULL  -- Calibrated probability that the step is right (docs/guide/lineage.md).
);

-- Conversions of models of a base (GGUF, AWQ, GPTQ, bitsandbytes, MLX below 8 bits, ONNX), and of which model each is a
-- copy. They have no record and no vector; their status is skipped, with the reason conversion. docs/guide/conversions.md.
CREATE TABLE conversions (
    model_id INTEGER NOT NULL,  -- The conversion, see fine_tunes.
    "commit" VARCHAR NOT NULL,  -- The commit that was read; a publish deletes the row once the model has another.
    format VARCHAR NOT NULL,  -- GGUF, AWQ, GPTQ, bitsandbytes, MLX or ONNX.
    types VARCHAR NOT NULL,  -- How its matrices are stored, the most frequent type first: "Q4_K, Q6_K".
    source_id INTEGER,  -- The model that it is a copy of, see fine_tunes; null for the base, for a model that is not in
        -- the atlas, and if it is unknown.
    source VARCHAR,  -- Its id; that of the base for a copy of the base. Null if it is unknown.
    verdict VARCHAR NOT NULL,  -- exactly (all codes that were read follow from the source), consistent with (by odds),
        -- differs from what it claims, or unknown source.
    rows_compared BIGINT NOT NULL,  -- Rows of matrices that were compared.
    rows_equal BIGINT,  -- Those whose codes are the source's; null if the quantiser depends on calibration data.
    codes_equal DOUBLE,  -- Share of equal codes; null as rows_equal.
    claimed VARCHAR[] NOT NULL,  -- The models that its card and its files name.
    differing VARCHAR[] NOT NULL,  -- Tensors that are not the source's.
    residual DOUBLE,  -- ‖D − δ‖ / ‖D‖, where D is the difference from the converted base and δ the source's change.
    error DOUBLE,  -- ‖W′ − W‖ / ‖W‖: how far its values lie from the source's, in a typical matrix.
    log_odds DOUBLE,  -- Decimal logarithm of the odds of the source against the next candidate; at most 9999.
    next VARCHAR,  -- The next candidate.
    also VARCHAR[] NOT NULL,  -- Candidates that these rows do not tell from the source.
    fingerprint VARCHAR NOT NULL,  -- Digest of all codes that were read: equal for two uploads of one conversion.
    file_bytes BIGINT NOT NULL,  -- Bytes of its files of weights.
    bytes_read BIGINT NOT NULL,  -- Bytes that were read for the answer, of the conversion and of candidates.
    notes VARCHAR[] NOT NULL,  -- What could not be compared.
    answered_at TIMESTAMP NOT NULL  -- When it was computed, UTC.
);

-- Datasets that models were probably tuned on (query predict --store): one row per (model, dataset).
CREATE TABLE predictions (
    model_id INTEGER NOT NULL,  -- The model, see fine_tunes.
    record_key VARCHAR NOT NULL,  -- The record that the answer was computed from; a publish deletes the row once the
        -- model has another record.
    rank INTEGER NOT NULL,  -- 1 for the most probable.
    dataset VARCHAR NOT NULL,  -- Canonical name, or "none of these": a dataset that no voter names.
    probability DOUBLE NOT NULL,  -- Expected share of this dataset among the datasets of the model.
    votes DOUBLE NOT NULL,  -- Sum of the votes of the models among the k nearest that name it; the vote of the nearest
        -- is 1.
    agreement DOUBLE NOT NULL,  -- Share of all votes that name it; 0 if there are no votes.
    authors INTEGER NOT NULL,  -- Number of authors of the models that vote for it.
    vectors DOUBLE,  -- The probability by the vectors alone; null if the model has no vector.
    head DOUBLE,  -- The probability by the head in its config.json alone; null if there is none.
    declared BOOLEAN NOT NULL,  -- Whether its own card names it. The card is not used for the prediction.
    calibrated BOOLEAN NOT NULL,  -- Whether the probabilities were fitted to this atlas.
    models VARCHAR[] NOT NULL,  -- The models that vote for it, the largest vote first.
    representation VARCHAR NOT NULL,  -- The representation that was used.
    k INTEGER NOT NULL,  -- Number of nearest models that vote.
    answered_at TIMESTAMP NOT NULL  -- When the answer was computed, UTC.
);

-- Depth profiles (index profile): what each layer of a model keeps of its input. One row per file under profiles/.
CREATE TABLE profiles (
    profile_id INTEGER NOT NULL,  -- Key to profile_layers; changes whenever a publish reads the file again.
    model_id INTEGER,  -- The model, see fine_tunes; null for a base and for an untrained twin.
    base VARCHAR NOT NULL,  -- Canonical id of the base.
    subject VARCHAR NOT NULL,  -- base, fine_tune, or untrained (the base's architecture with fresh weights).
    model VARCHAR NOT NULL,  -- Id of the model; of the base for a base and an untrained twin.
    "commit" VARCHAR,  -- Commit whose weights were profiled.
    base_commit VARCHAR,  -- Commit of the base that drift and cka are taken against.
    probe VARCHAR NOT NULL,  -- Kind of input: random, text or image.
    probe_sha256 VARCHAR,  -- sha256 of the token ids or pixels; profiles of different probes are not compared.
    sequences INTEGER,  -- Number of sequences or images in the probe.
    tokens INTEGER,  -- Number of tokens in a sequence; null for images.
    seed BIGINT,  -- Seed of all draws.
    method VARCHAR NOT NULL,  -- Version of the measures.
    recipe VARCHAR NOT NULL,  -- default, or original: the gradient descent of the original papers.
    asked VARCHAR[] NOT NULL,  -- Sets of measures that were requested: default, recover, exact.
    is_complete BOOLEAN NOT NULL,  -- False if the run was stopped; the layers that are present are complete.
    profile_key VARCHAR NOT NULL,  -- Name of its file under profiles/.
    device VARCHAR,  -- Where it was measured: cpu or cuda.
    threads INTEGER,  -- Number of threads; with another number the results differ in the last bits.
    cpu_seconds DOUBLE,  -- Processor time in seconds.
    made TIMESTAMP  -- When it was made.
);

-- One layer of a depth profile. A null means that the measure was not requested or is undefined here; it never means 0.
CREATE TABLE profile_layers (
    profile_id INTEGER NOT NULL,  -- The profile, see profiles.
    stack VARCHAR NOT NULL,  -- encoder if the model has two stacks, else empty.
    layer INTEGER NOT NULL,  -- The output of this block, counted from 1; deltas.layer counts the same block from 0.
    is_constant BOOLEAN NOT NULL,  -- Whether its outputs do not depend on the input.
    tolerance FLOAT,  -- Noise, in units of spread, at which the best decoder that knows all other tokens loses half of
        -- the tokens; 0 if the layer is constant. It does not depend on rank.
    tolerance_error FLOAT,  -- Standard error of tolerance.
    tolerance_own FLOAT,  -- The same with noise of the layer's own covariance, which does depend on rank.
    tolerance_own_error FLOAT,  -- Standard error of tolerance_own.
    readable FLOAT,  -- Share of tokens that a linear map, fitted on random tokens, recovers at their position; 1 at all
        -- layers of a healthy encoder.
    readable_error FLOAT,  -- Standard error of readable.
    recovered FLOAT,  -- Share of tokens recovered by 30 steps of gradient descent on embeddings from a blank start;
        -- also low if the layer is ill-conditioned.
    recovered_error FLOAT,  -- Standard error of recovered.
    recovered_seed FLOAT,  -- The same by the method of the original papers (index profile --recipe original).
    recovered_seed_error FLOAT,  -- Standard error of recovered_seed.
    closer FLOAT,  -- Share of sequences whose recovered input gives a closer output than a shifted input does: the
        -- criterion of the original papers.
    closer_error FLOAT,  -- Standard error of closer.
    closer_ratio FLOAT,  -- Factor by which it is closer, on average.
    closer_ratio_error FLOAT,  -- Standard error of closer_ratio.
    verified FLOAT,  -- Share of tokens in sequences that were recovered exactly, with a certificate (index profile
        -- --exact). It is 1 nearly everywhere, so it does not measure depth.
    verified_error FLOAT,  -- Standard error of verified.
    reach FLOAT,  -- Effective number of input positions that an output depends on: the exponential of the entropy of
        -- squared gradients.
    reach_error FLOAT,  -- Standard error of reach.
    own FLOAT,  -- Share of its own position in the squared gradients.
    own_error FLOAT,  -- Standard error of own.
    start_share FLOAT,  -- Share of the first quarter of the input in the squared gradients.
    start_share_error FLOAT,  -- Standard error of start_share.
    cka FLOAT,  -- Linear CKA with the same layer of the base on the same probe.
    cka_error FLOAT,  -- Standard error of cka.
    drift FLOAT,  -- ‖h − h_base‖ / ‖h_base − its mean‖ on the same probe.
    drift_error FLOAT,  -- Standard error of drift.
    image_error FLOAT,  -- ‖found − truth‖ / ‖truth − its mean‖ for images recovered from the output of this layer.
    image_error_error FLOAT,  -- Standard error of image_error.
    spread FLOAT  -- The unit of noise: the median over positions of the rms deviation of outputs from their mean.
);

-- Rows of the listing that could not be read, and models whose values do not fit the tables.
CREATE TABLE rejected_listing_rows (
    base VARCHAR NOT NULL,  -- The base whose listing contains it.
    why VARCHAR NOT NULL,  -- What is wrong with it.
    raw VARCHAR,  -- The row, truncated.
    seen TIMESTAMP  -- When it was seen.
);

-- One row per build.
CREATE TABLE builds (
    build_id INTEGER NOT NULL,  -- 1, 2, 3, …
    base VARCHAR NOT NULL,  -- Canonical id of the base.
    base_commit VARCHAR,  -- Commit of the base.
    started TIMESTAMP,  -- When it started.
    finished TIMESTAMP,  -- When it was published.
    outcome VARCHAR NOT NULL,  -- finished, or stopped (finished work is kept).
    discovered INTEGER,  -- Number of models considered: indexed + unchanged + skipped + failed.
    indexed INTEGER,  -- Models read and vectorised by this build.
    unchanged INTEGER,  -- Models that already had a record of this commit.
    skipped INTEGER,  -- Models that cannot be indexed at their commit.
    failed INTEGER,  -- Models that will be retried.
    bytes_read BIGINT,  -- Bytes of checkpoints that it read.
    bytes_total BIGINT,  -- Total size in bytes of the weight files that it read parts of.
    seconds DOUBLE,  -- Wall time in seconds.
    spec JSON,  -- What was computed: rank, spectra, record version, and whether samples were read; for a build that
        -- crawled, also the address of the Hub and the options of the command.
    thresholds JSON,  -- The thresholds of the flags is_unrelated and duplicate_of.
    versions JSON  -- Versions of the relevant libraries.
);

-- How the base named by an adapter (adapter_config.json) was resolved: one row per adapter that names one.
CREATE TABLE adapter_bases (
    model_id INTEGER NOT NULL,  -- The adapter, see fine_tunes.
    named VARCHAR NOT NULL,  -- base_model_name_or_path as written: an id, or a folder on the author's machine.
    verdict VARCHAR NOT NULL,  -- base; finetune (its change is added to that of the adapter); foreign (another base;
        -- the adapter is flagged as unrelated); unknown (treated as the base).
    resolved_base VARCHAR NOT NULL,  -- The model and commit that it was resolved to; if that is itself an adapter,
        -- followed by > and the model it adapts, and so on. Empty for the base.
    why VARCHAR NOT NULL  -- Why it is foreign or unknown, or why the sum is only approximate, or what is odd about the
        -- name or revision that it gives, as a sentence; empty otherwise.
);

-- Views for common questions.

-- Indexed models with their datasets. The option --where is a condition on this view.
-- model_id: Integer id, unique per (model, base).
-- id: Id on the Hub (owner/name), local:NAME for a folder of this machine, or SCHEME:… of another source; the same as model.
-- path: The models from the base (not in the list) to this one (the last), according to their claims, each with its
--   relation to the one before; its length is the number of steps.
-- datasets: Canonical names of its datasets, sorted; empty if it names none.
-- base_grid: What the base had been rounded to before this model was made from it, as its weights show: nf4, or nf4
--   double (with double quantisation). The error of that rounding is not part of its deltas. Null if it was made from
--   the base as it is.
-- change: What was done to the base's weights: trained, adapter, adapter merged, merge (by query lineage --all),
--   unchanged, fact edited, abliterated, pruned, quantised, noise added, embedding rows reset, embedding rows added,
--   layers moved, rearranged, untrained or broken (docs/guide/kinds.md).
-- change_probability: Probability of change, by how far its test is from the scores of ordinary models.
-- change_evidence: Why, in words.
-- vector_group: What its vector is made of: adapter (what training did to the input side of an adapter), adapter by
--   output (its whole change; with other adapters it is compared by its output side), or full (the change of full
--   weights).
-- adapter_kind: Method of an adapter: LoRA, DoRA, LoHa, IA3 and others, see records.adapter_kind. Null for other
--   models.
-- initialisation: Models with the same number have LoRA factors A that started from the same random numbers: same tool
--   and same seed, which says nothing about their data. Null if no other model shares it.
-- license: The same as licence.
-- trigger_words: Words that a prompt of an image or video model must contain, according to its card (instance_prompt,
--   trigger_words).
-- dtype: The dtype that most of its weights are stored in.
-- record_seconds: Seconds spent reading and vectorising it.
CREATE VIEW models AS
SELECT
    model_id, model AS id, model, base, author, "commit", relation, claimed_by, parent, path, verified, base_cosine,
    coalesce(named.datasets, []) AS datasets,
    "read", is_copy, copy_evidence, is_unrelated, is_partly_frozen, base_grid, vector_group, adapter_kind, start, initialisation, has_spectra,
    CASE WHEN is_merge THEN 'merge' ELSE change END AS change,
    CASE WHEN is_merge THEN merges.probability ELSE change_probability END AS change_probability,
    CASE WHEN is_merge THEN 'a merge of ' || merges.parents ELSE change_evidence END AS change_evidence,
    duplicate_of, duplicate_group, delta_norm, delta_norm_error, relative_norm,
    created, modified, downloads, likes, gated, licence, licence AS license, licence_name, licence_link, languages, pipeline_tag, library, trigger_words,
    model_type, head_class, label_count, label_names, problem_type, dtype, weight_files, bytes_read, block_bytes,
    training_tool, run, step, epoch, train_loss, eval_loss, learning_rate, stated_base, training, run_group, run_place,
    is_earlier_checkpoint,
    fine_tunes.record_key, seconds AS record_seconds, first_seen, last_seen, deleted_at_hub
FROM fine_tunes
JOIN records USING (model_id)
LEFT JOIN (
    SELECT model_id, list_sort(list(DISTINCT dataset)) AS datasets
    FROM model_datasets WHERE dataset IS NOT NULL GROUP BY model_id
) AS named USING (model_id)
LEFT JOIN (
    SELECT lineage.model_id, string_agg(coalesce(parents.model, 'a model outside the atlas'), ', ' ORDER BY parents.model) AS parents,
        min(lineage.probability) AS probability
    FROM lineage LEFT JOIN fine_tunes AS parents ON parents.model_id = lineage.parent_id
    WHERE kind = 'merge' GROUP BY lineage.model_id
) AS merges USING (model_id),
LATERAL (SELECT merges.parents IS NOT NULL AND change = 'trained' AS is_merge)
WHERE status = 'indexed';

-- What was done to the weights of every model of which that is known, also of those that cannot be indexed because of it.
-- change: As in models; broken and layers moved also of skipped models.
-- change_probability: Probability of change, by how far its test is from the scores of ordinary models; null for skipped models, of which it is certain.
-- change_evidence: Why, in words.
CREATE VIEW changes AS
SELECT model_id, base, model, change, change_probability, change_evidence FROM models WHERE change IS NOT NULL
UNION ALL
SELECT model_id, base, model, CASE reason WHEN 'not_finite' THEN 'broken' ELSE 'layers moved' END, NULL, detail
FROM fine_tunes WHERE status = 'skipped' AND reason IN ('not_finite', 'layers_moved');

-- The vectors of each (base, representation) and their FAISS file.
-- representation: Name, as `index represent` takes it.
-- vectors: Models that have a vector.
CREATE VIEW indexes AS
SELECT base, representation, version, rank, vectors, length, faiss_bytes, faiss_file FROM representations;

-- Indexed models and authors of each dataset, and its spellings.
-- dataset: Canonical name.
-- models: Indexed models that name it.
-- authors: Number of accounts that own them.
-- leading_author: The account with most of them.
-- spellings: Spellings in cards and tags.
CREATE VIEW dataset_counts AS
SELECT
    base, dataset, count(DISTINCT model_id) AS models, count(DISTINCT author) AS authors,
    mode(author) AS leading_author, list_sort(list(DISTINCT raw)) AS spellings
FROM fine_tunes JOIN model_datasets USING (model_id)
WHERE status = 'indexed' AND dataset IS NOT NULL
GROUP BY base, dataset;

-- Number of indexed models of each author.
-- author: Account that owns them; "local" for folders.
-- models: Its indexed models of this base.
-- downloads: Their downloads in the last 30 days, as listed.
CREATE VIEW author_counts AS
SELECT base, author, count(*) AS models, sum(downloads) AS downloads
FROM fine_tunes WHERE status = 'indexed' GROUP BY base, author;

-- Skipped and failed models by reason, with an example.
-- models: Number of models.
-- example: The detail of one of them.
-- example_model: One of them.
CREATE VIEW failures AS
SELECT base, status, reason, count(*) AS models, arg_min(detail, model) AS example, min(model) AS example_model
FROM fine_tunes WHERE status IN ('skipped', 'failed') GROUP BY base, status, reason;

-- Neighbours by name, in every published representation. Filter on representation and model, order by rank.
-- model: The model whose neighbours these are.
-- neighbour: The neighbour.
-- similarity: Similarity of the two, as shown by query similar.
-- author: Account of the neighbour.
-- relation: Relation of the neighbour to the base: finetune, adapter, merge or quantized.
-- datasets: Canonical names of the neighbour's datasets, sorted.
-- other_author: Whether different accounts own the two.
-- same_weights: Whether the two are in the same group of duplicates.
CREATE VIEW similar_by_representation AS
SELECT
    near.representation, asked.base, asked.model, near.rank, found.model AS neighbour,
    near.similarity, found.author, found.relation, found.datasets, asked.author <> found.author AS other_author,
    coalesce(asked.duplicate_group = found.duplicate_group, false) AS same_weights
FROM neighbours AS near
JOIN models AS asked USING (model_id)
JOIN models AS found ON found.model_id = near.neighbour_id;

-- Neighbours by name, in the default representation. Filter on model, order by rank. For other representations see
--   similar_by_representation.
CREATE VIEW similar_models AS
SELECT * EXCLUDE (representation) FROM similar_by_representation WHERE representation = 'input';

-- Each pair of similar models once, in the default representation. ORDER BY similarity DESC gives the most similar,
--   WHERE NOT is_repeat leaves out duplicates.
-- model: One of the two: that with the smaller model_id if each is in the list of the other.
-- neighbour: The other model.
-- similarity: Similarity of the two, as shown by query similar.
-- other_author: Whether different accounts own the two.
-- is_repeat: Whether one of the two repeats an earlier upload.
-- datasets: Canonical names of the datasets of model, sorted.
-- neighbour_datasets: The same for neighbour.
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

-- Undocumented models whose neighbours agree: the most probable dataset of each stored prediction (query predict
--   --undocumented --store) that has at least half of the votes, from at least two authors.
-- model: The model. It names no dataset.
-- voters: The models that vote for it, the largest vote first.
CREATE VIEW likely_datasets AS
SELECT
    base, model, author, downloads, dataset, probability, agreement, predictions.authors, predictions.models AS voters,
    calibrated, answered_at
FROM predictions JOIN models USING (model_id)
WHERE rank = 1 AND dataset <> 'none of these' AND agreement >= 0.5 AND predictions.authors >= 2
  AND len(datasets) = 0 AND NOT is_copy AND NOT is_unrelated;

-- Models that claim the base although their weights contradict it, and adapters of another base.
-- names_base: For an adapter: the base that its adapter_config.json names.
-- why: For an adapter: why that base does not derive from this one.
CREATE VIEW suspicious_claims AS
SELECT base, model, author, relation, claimed_by, base_cosine, downloads, named AS names_base, why
FROM fine_tunes JOIN records USING (model_id) LEFT JOIN adapter_bases USING (model_id) WHERE is_unrelated;

-- Models that repeat an earlier upload.
-- model: The later upload.
-- first_upload: The model that it repeats.
-- author: Account of the later upload.
-- first_author: Account of the first upload.
-- created: When the later upload was created.
CREATE VIEW duplicates AS
SELECT copy.base, copy.model, first.model AS first_upload, copy.author, first.author AS first_author, copy.created
FROM fine_tunes AS copy
JOIN records ON records.model_id = copy.model_id
JOIN fine_tunes AS first ON first.model_id = records.duplicate_of;

-- Parents that cards and tags name, including the base.
-- parent: Id of the parent, as written.
-- parent_id: The parent, if it is a model of the same base in this atlas.
CREATE VIEW declared_lineage AS
SELECT DISTINCT claimed.model_id, claimed.model, base, parent, found.model_id AS parent_id
FROM (
    SELECT model_id, fine_tunes.model, fine_tunes.base, regexp_extract(tag, '^base_model:(?:(?:finetune|adapter|merge|quantized):)?(.+)$', 1) AS parent
    FROM fine_tunes JOIN tags USING (model_id) WHERE tag LIKE 'base_model:%'
    UNION ALL SELECT model_id, model, base, parent FROM fine_tunes WHERE parent IS NOT NULL
) AS claimed
LEFT JOIN (SELECT model_id, model AS parent, base FROM fine_tunes) AS found USING (parent, base)
WHERE parent <> '';

-- What licences demand of models made from a model. A licence has the terms of all patterns that it matches, and is not
--   judged if it matches none. Of a licence that the Hub calls other, the name that the card gives it is judged; a name
--   proves no permission, so that patterns without terms are not compared with it.
-- family: permissive, copyleft, non-commercial, no derivatives, research, OpenRAIL, or the name of a model family.
-- pattern: Identifier of a licence on the Hub, in lower case; * stands for any text.
-- terms: Terms that the licence of a model made from it must have too; empty for permissive licences. Nothing may be
--   made from one with "no derivatives".
CREATE VIEW licence_terms AS
SELECT family, unnest(patterns) AS pattern, terms FROM (VALUES
    ('permissive', []::VARCHAR[], [
        'apache-*', 'mit', 'mit-*', 'bsd', 'bsd-*', '0bsd', 'isc', 'ncsa', 'zlib', 'unlicense', 'wtfpl', 'cc', 'cc0-*', 'cc-by-[0-9]*',
        'pddl', 'odc-by', 'afl-*', 'artistic-*', 'ecl-*', 'bsl-*', 'ms-pl', 'postgresql', 'cdla-permissive-*', 'openmdw*'
    ]),
    ('copyleft', ['share-alike'], [
        'gpl*', 'agpl*', 'lgpl*', 'mpl-*', 'epl-*', 'eupl-*', 'osl-*', 'odbl', 'gfdl', 'cdla-sharing-*', 'cc-by-sa-*', 'cc-by-nc-sa-*'
    ]),
    ('non-commercial', ['non-commercial'], [
        'cc-by-nc-*', '*noncommercial*', '*non-commercial*', 'deepfloyd-if-license', 'apple-amlr', '*-amlr', 'mnpl*', '*-mnpl*'
    ]),
    ('research', ['non-commercial', 'research only'], ['*research*', 'mrl', 'mrl-*']),
    ('no derivatives', ['no derivatives'], ['cc-by-nd-*', 'cc-by-nc-nd-*']),
    ('Llama', ['terms of Llama'], ['llama*']),
    ('Gemma', ['terms of Gemma'], ['gemma*']),
    ('Grok', ['terms of Grok'], ['grok*']),
    ('LFM', ['terms of LFM'], ['lfm*']),
    ('OpenRAIL', ['use restrictions'], ['*openrail*', 'bigscience-bloom-rail-*'])
) AS listed(family, terms, patterns);

-- Models with another licence than their base or a model from which the weights show them to be made, through any number of
--   steps (after query lineage --all), or with no licence.
-- model: The model.
-- licence: Licence of the model, with its name where it is other; null if its card gives none.
-- parent: A model that it was made from, or its base.
-- parent_licence: Licence of the parent.
-- kind: Kind of the step from the parent, see lineage; for the base the relation that the model claims.
-- steps: Number of steps from the parent to the model: 1 for a direct parent.
-- verdict: conflict: the model drops a term that the parent's licence passes on. differs: another licence that may be
--   chosen, or one that is not judged. none given: the model names no licence.
-- terms: Terms of the parent's licence that the model's licence does not have, see licence_terms.
CREATE VIEW licence_differences AS
WITH RECURSIVE ancestors AS (
    SELECT model_id, parent_id, kind, 1 AS steps FROM lineage WHERE direction = 'known' AND parent_id IS NOT NULL
    UNION
    SELECT ancestors.model_id, lineage.parent_id, lineage.kind, steps + 1
    FROM ancestors JOIN lineage ON lineage.model_id = ancestors.parent_id
    WHERE direction = 'known' AND lineage.parent_id IS NOT NULL AND lineage.parent_id <> ancestors.model_id AND steps < 20
), nearest AS (
    SELECT model_id, parent_id, arg_min(kind, steps) AS kind, min(steps) AS steps FROM ancestors GROUP BY ALL
), stated AS (
    SELECT model_id, base, model, licence, licence_name FROM fine_tunes
    UNION ALL SELECT NULL, base, base, licence, licence_name FROM bases
), made AS (
    SELECT child.*, parent.model AS parent, parent.licence AS parent_licence, parent.licence_name AS parent_licence_name, kind, steps
    FROM nearest
    JOIN stated AS child USING (model_id)
    JOIN stated AS parent ON parent.model_id = nearest.parent_id
    UNION ALL
    SELECT
        child.*, bases.base, bases.licence, bases.licence_name, relation,
        1 + coalesce((SELECT max(steps) FROM nearest WHERE nearest.model_id = child.model_id), 0)
    FROM stated AS child
    JOIN fine_tunes USING (model_id)
    JOIN bases ON bases.base = child.base
    JOIN records ON records.model_id = child.model_id AND NOT is_unrelated
), judged AS (
    SELECT licence, licence_name, list_sort(list_distinct(flatten(list(terms)))) AS terms
    FROM (
        SELECT licence, licence_name, unnest(string_split(lower(licence), ', ')) AS part, false AS is_name
        FROM (SELECT DISTINCT licence, licence_name FROM stated) WHERE licence IS NOT NULL
        UNION ALL SELECT DISTINCT licence, licence_name, replace(lower(licence_name), ' ', '-'), true
        FROM stated WHERE lower(licence) = 'other' AND licence_name IS NOT NULL
    ) AS parts
    JOIN licence_terms ON part GLOB pattern AND NOT (is_name AND terms = [])
    GROUP BY licence, licence_name
), compared AS (
    SELECT
        made.base, made.model, parent, kind, steps, own.terms AS own_terms, theirs.terms AS parent_terms,
        made.licence || coalesce(' (' || made.licence_name || ')', '') AS licence,
        parent_licence || coalesce(' (' || parent_licence_name || ')', '') AS parent_licence,
        (SELECT downloads FROM fine_tunes WHERE fine_tunes.model_id = made.model_id) AS downloads
    FROM made
    LEFT JOIN judged AS own ON own.licence = made.licence AND own.licence_name IS NOT DISTINCT FROM made.licence_name
    LEFT JOIN judged AS theirs ON theirs.licence = parent_licence AND theirs.licence_name IS NOT DISTINCT FROM parent_licence_name
)
SELECT
    base, model, licence, parent, parent_licence, kind, steps,
    CASE
        WHEN list_contains(parent_terms, 'no derivatives') THEN 'conflict'
        WHEN coalesce(licence, '') = '' THEN 'none given'
        WHEN own_terms IS NULL OR parent_terms IS NULL OR list_has_all(own_terms, parent_terms) THEN 'differs'
        ELSE 'conflict'
    END AS verdict,
    list_filter(coalesce(parent_terms, []), lambda term: term = 'no derivatives' OR NOT list_contains(coalesce(own_terms, []), term)) AS terms,
    downloads
FROM compared
WHERE coalesce(parent_licence, '') <> ''
    AND (lower(licence) IS DISTINCT FROM lower(parent_licence) OR coalesce(list_contains(parent_terms, 'no derivatives'), false));

-- Models whose licence drops a term that the licence of a parent or of the base passes on, for example from
--   non-commercial to apache-2.0. A person has to judge whether that is permitted.
-- terms: The terms that are dropped, see licence_terms.
CREATE VIEW licence_conflicts AS
SELECT base, model, licence, parent, parent_licence, kind, steps, terms, downloads FROM licence_differences WHERE verdict = 'conflict';

-- Full models whose deltas all have low rank, because a LoRA was merged into the base. For ranks above the stored one
--   use query lineage.
-- relative_norm: The largest relative norm of its deltas.
-- changed: Number of matrices that it changed.
-- untouched: Number of matrices that it left unchanged.
-- energy: The smallest share of a delta's energy that the stored singular values account for.
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

-- Mean rank of δW and of W by depth, without copies, unrelated models, duplicates and zero deltas. Where some ranks are
--   unknown only models with spectra are averaged, because the known ranks would be the small ones.
-- family: A family, or the name of a fused matrix (query_key_value).
-- models: Number of models whose δW is not zero.
-- with_spectra: Number of models whose records have all singular values.
-- rank_50: Mean rank of δW that holds 50 % of the energy; null if unknown.
-- rank_80: Mean rank of δW that holds 80 % of the energy; null if unknown.
-- rank_90: Mean rank of δW that holds 90 % of the energy; null if unknown.
-- rank_95: Mean rank of δW that holds 95 % of the energy; null if unknown.
-- rank_99: Mean rank of δW that holds 99 % of the energy; null if unknown.
-- energy: Mean share of norm² that the stored singular values account for.
-- relative_norm: Mean norm relative to the matrix of the base.
-- weight_rank_50: The same for W itself, at 50 %.
-- weight_rank_80: The same for W itself, at 80 %.
-- weight_rank_90: The same for W itself, at 90 %.
-- weight_rank_95: The same for W itself, at 95 %.
-- weight_rank_99: The same for W itself, at 99 %.
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

-- Depth profiles together with the weight changes, layer by layer.
-- profile_id: The profile, see profiles.
-- model_id: The model, see fine_tunes; null for a base and for an untrained twin.
-- stack: encoder if the model has two stacks, else empty.
-- layer: The output of this block, counted from 1; deltas.layer counts the same block from 0.
-- own_delta: Root of the sum of the squared relative norms of the deltas of this layer; null for bases.
-- delta: The same for this layer and all layers below it.
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

-- SELECT * FROM nearest('owner/name'): the models most similar to one, nearest first.
CREATE MACRO nearest(name, k := 10) AS TABLE
SELECT rank, neighbour AS model, similarity, author, relation, datasets
FROM similar_models
WHERE model = name AND rank <= k
ORDER BY rank;

-- SELECT error FROM similarity_error(base, representation, group, other group): how far the similarity of two models of
--   these groups (records.vector_group) may move as models are added, because the centre moves: for two full fine-tunes
--   1.5/n, where n is the smaller of the votes in the centre and the datasets that its models name, at least 2; half of
--   it for a full fine-tune and an adapter, 0 for two adapters.
CREATE MACRO similarity_error(of_base, of_representation, group_of_one, group_of_other) AS TABLE
    SELECT coalesce(sum(moves), 0.0) / 2 AS error
    FROM (VALUES (group_of_one), (group_of_other)) AS both_groups(named)
    JOIN (
        SELECT vector_group, coalesce(avg(1.5 / greatest(2.0, least(votes, datasets))) FILTER (votes > 0), 0.75) AS moves
        FROM internal.centres
        WHERE base = of_base AND representation = of_representation
        GROUP BY vector_group
    ) AS centre_of ON centre_of.vector_group = named;

-- SELECT share, share_high FROM background(base, representation, group, other group, similarity): the share of pairs of
--   unrelated models that are at least as similar, and the upper end of its 95 % interval; null if too few pairs, or
--   authors, are known.
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

COMMIT;

