"""Why a model is not in the atlas: every code in plain words."""

from __future__ import annotations

STATUSES = {
    "indexed": "Its weights were read, compared with the base's and turned into vectors.",
    "skipped": "It can never be read as it stands; a new version of it would be looked at again.",
    "failed": "Something went wrong on the way; the next build tries again.",
    "listed": "Found, but not looked at yet: the build was limited or stopped. The next one goes on.",
}

REASONS = {
    "adapter_unsupported": "An adapter of a kind whose change cannot be written as a low-rank delta, such as DoRA.",
    "base_unreadable": "The base that the adapter is added to cannot be read, so its layers cannot be asked.",
    "corrupt_file": "The file with the weights is damaged, or claims sizes that it does not have.",
    "disabled": "The Hub has withdrawn the repository: nobody can read it any more.",
    "does_not_fit": "What was kept of it is damaged, or holds values that the atlas has no room for.",
    "file_changed": "The file was replaced while it was being read.",
    "gated": "Its owner gives access only on request, and this account has none.",
    "layer_mismatch": "It has another number of layers than the base, so its matrices have no counterparts.",
    "malformed": "Its files contradict themselves or do not have the form that they must have.",
    "malformed_row": "What the Hub says of it cannot be read.",
    "missing_matrices": "Matrices of the base are missing from it.",
    "missing_tensors": "Tensors that its function needs are missing, so its layers cannot be asked.",
    "mixture_of_experts": "Each word is sent to some of several networks; such models are not profiled.",
    "network": "The connection failed.",
    "no_weights": "The repository holds no weights, only a card or a plan.",
    "not_finite": "Its weights hold values that are no numbers (NaN or infinite) or are beyond all measure.",
    "not_found": "It, or a file of it, is no longer there, or is private.",
    "not_kept": "The folder that keeps what is read once could not be written to.",
    "out_of_memory": "Reading it needed more memory than there was.",
    "quantized": "Its weights were rounded to a few bits, so the small change of fine-tuning is lost in the rounding.",
    "range_ignored": "The server would not send a part of the file alone.",
    "rate_limited": "The Hub allows so many requests in a while, and these were used up.",
    "refused": "The Hub refuses to show it to this account.",
    "renamed": "It has another name now, and is listed under that.",
    "remote_code": "It needs code of its own repository, which is never run.",
    "server_error": "The Hub, or a server behind it, answered with an error.",
    "shape_mismatch": "Its matrices have other sizes than the base's, so they cannot be subtracted.",
    "shared_layers": "All its layers share one set of weights, so they cannot be told apart.",
    "short_body": "The file broke off each time before its end.",
    "timeout": "No answer came in time.",
    "unknown_architecture": "A kind of network that no architecture file describes.",
    "unreadable_dtype": "Its numbers are stored in a format that is not read.",
    "unreadable_format": "Its weights are there only in a format that is not read (GGUF, ONNX, flax, TensorFlow …).",
    "unsafe_pickle": "Its file asks to run code when it is loaded. Nothing was run.",
    "unsupported_input": "It takes something else than words or images (sound, films, both at once).",
    "worker_died": "The process that read it died each time, probably for want of memory.",
    "worker_error": "The process that read it met an error that nobody foresaw.",
}

# What claims that a model was made from the base; "alias:<id>" is any of them under another name of the base.
CLAIMS = {
    "tag": "the Hub's base_model tag",
    "alias": "a tag with another name of the base",
    "adapter_config": "its adapter_config.json",
    "config": "its config.json",
    "card": "its model card",
    "name": "its own name",
    "descendant": "being made from one of its fine-tunes",
    "user": "the person who added it",
}

UNEXPLAINED = "No explanation is on record; the example says what was met."


def reason_in_words(code: str | None) -> str:
    """A reason as a sentence."""
    return REASONS.get(code or "", UNEXPLAINED)


def claim_in_words(claimed_by: str | None) -> str:
    """What claims the base, as it goes after "claimed by"."""
    kind = (claimed_by or "").partition(":")[0]
    return CLAIMS.get(kind, claimed_by or "nothing on record")
