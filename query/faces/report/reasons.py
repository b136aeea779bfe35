"""The codes for why a model is not in the atlas, and for the sources of claims, in plain words."""

from __future__ import annotations

STATUSES = {
    "indexed": "Its weights were read, compared with the base's and turned into vectors.",
    "skipped": "This version of it can never be read; a new version would be tried again.",
    "failed": "Something went wrong; the next build tries again.",
    "listed": "Found, but not processed yet: the build was limited or stopped. The next one continues.",
}

REASONS = {
    "adapter_chain": "It is an adapter on an adapter on an adapter and so on, deeper than is followed.",
    "adapter_unsupported": "An adapter that changes no weights, or whose change does not follow from its files.",
    "base_sampled": "Its change depends on whole matrices of the base, and this atlas keeps only some of their rows.",
    "base_unreadable": "The base that the adapter is added to cannot be read, so its layers cannot be profiled.",
    "conversion": "It is a conversion (GGUF, AWQ …), of which no vector is made; the table conversions has its source.",
    "corrupt_file": "The file with the weights is damaged, or claims sizes that it does not have.",
    "disabled": "The Hub has disabled the repository, so it can no longer be read.",
    "does_not_fit": "Its record is damaged, or holds values that do not fit the database.",
    "file_changed": "The file was replaced while it was being read.",
    "folder": "It was added from a folder, whose path is not stored, and would have to be read again.",
    "gated": "Its owner gives access only on request, and this account has none.",
    "layer_mismatch": "Its number of layers differs from the base's, so its matrices have no counterparts.",
    "layers_moved": "Its layers are the base's, but not as many: some were copied or dropped.",
    "malformed": "Its files contradict each other or do not have a valid form.",
    "malformed_row": "The Hub's listing of it cannot be read.",
    "missing_matrices": "Matrices of the base are missing from it.",
    "missing_tensors": "Tensors that its function needs are missing, so its layers cannot be profiled.",
    "mixture_of_experts": "Each word is sent to some of several networks; such models are not profiled.",
    "network": "The connection failed.",
    "no_weights": "The repository contains no weights.",
    "not_finite": "Its weights contain values that are not finite (NaN or infinite) or far too large.",
    "not_found": "It, or a file of it, is no longer there, or is private.",
    "not_installed": "Its format needs a package that is not installed; it is tried again.",
    "not_kept": "The cache folder could not be written to.",
    "out_of_memory": "Reading it needed more memory than was available.",
    "parent_damaged": "The fine-tune below the adapter can no longer be read, and its stored record is damaged.",
    "quantized": "Its weights were rounded to a few bits, so the small change of fine-tuning is lost in the rounding.",
    "range_ignored": "The server did not send parts of the file.",
    "rate_limited": "The Hub's limit on requests was reached.",
    "refused": "The Hub does not allow this account to read it.",
    "renamed": "It was renamed, and is listed under its new name.",
    "remote_code": "It needs code of its own repository, which is never run.",
    "server_error": "The Hub, or a server behind it, answered with an error.",
    "shape_mismatch": "Its matrices have different sizes than the base's, so they cannot be subtracted.",
    "shared_layers": "All its layers share one set of weights, so they cannot be distinguished.",
    "short_body": "The file was cut off before its end every time.",
    "timeout": "No answer came in time.",
    "unknown_architecture": "No architecture file describes this kind of network.",
    "unreadable_dtype": "Its numbers are stored in a format that is not read.",
    "unreadable_format": "Its weights exist only in a format that is not read (Flax, TensorFlow …).",
    "unsafe_pickle": "Its file asks to run code when it is loaded. Nothing was run.",
    "unsupported_input": "Its input is not words or images (for example sound, video, or both).",
    "worker_died": "The process that read it died every time, probably because memory ran out.",
    "worker_error": "The process that read it met an unexpected error.",
}

# The sources of a claim that a model was made from the base; "alias:<id>" is a claim with another name of the base.
CLAIMS = {
    "tag": "the Hub's base_model tag",
    "alias": "a tag with another name of the base",
    "adapter_config": "its adapter_config.json",
    "config": "its config.json",
    "card": "its model card",
    "weights": "its weights, which are nearly the base's",
    "name": "its own name",
    "descendant": "being made from one of its fine-tunes",
    "user": "the person who added it",
}

UNEXPLAINED = "No explanation is known; see the details of the example."


def claim_in_words(claimed_by: str | None) -> str:
    """The source of the claim, to follow "claimed by"."""
    kind = (claimed_by or "").partition(":")[0]
    return CLAIMS.get(kind, claimed_by or "nothing on record")
