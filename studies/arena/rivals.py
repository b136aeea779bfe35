"""Other ways to compare fine-tunes, each as a table of similarities; written from the papers, without their code.

All that use weights start from the same δW (the full-rank factors of a record), so that they differ in nothing but what
they keep of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from sklearn.decomposition import KernelPCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import StandardScaler

from indexer.records.record import Record
from scripts.family.plan import Plan
from scripts.family.training import LANGUAGE_MODELS
from studies.arena.scores import Reals, cosines
from studies.arena.subjects import Subjects

COMPONENTS = 64
# Generic instructions, as for Delta Activations: they name no subject.
PROMPTS = (
    "Below is a task. Write an answer that completes it.",
    "The following instruction describes a problem; respond to it as well as you can.",
    "Read the request and its input, then give a suitable reply.",
    "Here is an instruction with some context. Provide the response.",
    "Please complete the task that is described here.",
)
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_NOTHING = 1e-12


def flattened(records: Sequence[Record]) -> Reals:
    """(n, n) the exact inner products of the whole δW, flattened, from one matrix at a time."""
    gram = np.zeros((len(records),) * 2)
    for place in range(len(records[0].deltas)):
        gram += inner_products([(delta.u * delta.s, delta.v) for delta in _deltas(records, place)])
    return gram


def inner_products(factors: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> Reals:
    """(n, n) the inner products of matrices L Rᵀ with these factors, L (a, r) and R (b, r), in float32.

    Of low ranks, from products of factors: ⟨L Rᵀ, L′ R′ᵀ⟩ is the sum of (LᵀL′) ∘ (RᵀR′).
    """
    ranks = [left.shape[1] for left, _ in factors]
    (rows, _), (columns, _) = (side.shape for side in factors[0])
    if sum(ranks) ** 2 > len(factors) * rows * columns:
        stacked = np.stack([(left @ right.T).ravel() for left, right in factors]).astype(np.float32)
        return (stacked @ stacked.T).astype(np.float64)
    left, right = (np.concatenate(sides, axis=1).astype(np.float32) for sides in zip(*factors, strict=True))
    starts = np.cumsum([0, *ranks[:-1]])
    products = ((left.T @ left) * (right.T @ right)).astype(np.float64)
    found: Reals = np.add.reduceat(np.add.reduceat(products, starts, axis=0), starts, axis=1)
    return found


def cosine_of_gram(gram: Reals) -> Reals:
    """The cosines of vectors with these inner products; nan for zero vectors."""
    norms = np.sqrt(np.diag(gram))
    norms[norms <= _NOTHING] = np.nan
    found: Reals = gram / norms[:, None] / norms
    return found


def principal_components(cosine: Reals, count: int = COMPONENTS) -> Reals:
    """(n, count) the coordinates of unit vectors with these cosines along their principal components.

    The mean of the vectors is subtracted first (double centring; Gower, 1966).
    """
    kernel = KernelPCA(count, kernel="precomputed", eigen_solver="dense")
    found: Reals = kernel.fit_transform(np.nan_to_num(cosine))
    found[np.isnan(np.diag(cosine))] = 0
    return found


def spectral_statistics(records: Sequence[Record]) -> Reals:
    """(n, 4 · matrices): log ‖δW‖, stable rank, entropy of the spectrum and share of the whole energy, by matrix.

    Standardised over the models. Stable rank: ‖δW‖²/σ₁² (Rudelson & Vershynin, 2007); entropy: of σ²/Σσ², whose
    exponential is the effective rank (Roy & Vetterli, 2007); such statistics of weights as features of models: Martin &
    Mahoney, 2021.
    """
    energies = np.array([[np.square(delta.s, dtype=np.float64).sum() for delta in one.deltas] for one in records])
    shares = energies / np.maximum(energies.sum(axis=1, keepdims=True), _NOTHING)
    found = []
    for record, energy, share in zip(records, energies, shares, strict=True):
        row: list[float] = []
        for delta, whole, part in zip(record.deltas, energy, share, strict=True):
            weights = np.square(delta.s, dtype=np.float64) / max(whole, _NOTHING)
            entropy = -float(weights @ np.log(np.maximum(weights, _NOTHING)))
            row += [np.log(max(whole, _NOTHING)) / 2, 1 / max(weights.max(initial=0), _NOTHING) if whole else 0.0]
            row += [entropy, part]
        found.append(row)
    return np.asarray(StandardScaler().fit_transform(np.array(found)))


def mean_over_shared(tables: Iterable[Reals], changed: NDArray[np.bool_]) -> Reals:
    """The mean of the tables of all matrices over those that both models ``changed`` (n, matrices); nan without any."""
    total = np.zeros((len(changed),) * 2)
    for column, table in zip(changed.T, tables, strict=True):
        total += np.where(np.outer(column, column), np.nan_to_num(table), 0)
    shared = changed.astype(float) @ changed.T
    found: Reals = np.where(shared > 0, total / np.maximum(shared, 1), np.nan)
    return found


def arrow(records: Sequence[Record]) -> Iterator[Reals]:
    """By matrix, |cosine| of the first right singular vectors.

    They are Arrow's prototypes of adapters (Ostapenko et al., 2024, "Towards Modular LLMs by Building and Routing Among a
    Library of LoRAs", arXiv 2405.11157), which are compared with hidden states there; here with each other, and those
    of full fine-tunes, too.
    """
    for place in range(len(records[0].deltas)):
        yield np.abs(cosines(np.stack([delta.v[:, 0] * (delta.norm > 0) for delta in _deltas(records, place)])))


def spectral_routing(records: Sequence[Record]) -> Iterator[Reals]:
    """By matrix, the cosine of δWᵀδW, with which SpectR scores hidden states: hᵀ δWᵀδW h.

    Fleshman & Van Durme, 2025, "SpectR: Dynamically Composing LM Experts with Spectral Routing", arXiv 2504.03454.
    """
    return one_side(records, "v", 2)


def one_side(records: Sequence[Record], side: Literal["u", "v"], power: float) -> Iterator[Reals]:
    """By matrix, the cosine of Σ σ^power v vᵀ, or of u uᵀ: nothing is sketched, and nothing is subtracted."""
    for place in range(len(records[0].deltas)):
        deltas = [(getattr(delta, side), delta.s) for delta in _deltas(records, place)]
        yield cosine_of_gram(inner_products([(vectors * s**power, vectors) for vectors, s in deltas]))


def pooled_tokens(records: Sequence[Record], rank: int = 16) -> Reals:
    """(n, d) the mean over layers and singular triplets of tokens (√σ u, √σ v), for each family of matrices.

    Such tokens are the input of W2T (Han et al., 2026, "W2T: LoRA Weights Already Know What They Can Do", arXiv
    2603.15990), which brings LoRA factors into a canonical form (QR, then SVD) and trains a transformer on them; there is
    nothing to train on here, so the tokens are pooled. The sign of a triplet, which the SVD leaves open, makes the
    largest entry of v positive.
    """
    found = []
    for record in records:
        families: dict[str, list[NDArray[Any]]] = {}
        for delta in record.deltas:
            assert delta.u is not None
            assert delta.v is not None
            u, v = (side[:, :rank].astype(np.float64) for side in (delta.u, delta.v))
            scale = np.sqrt(delta.s[:rank]) * np.sign(v[np.abs(v).argmax(axis=0), np.arange(v.shape[1])])
            families.setdefault(delta.key.family_key, []).append(np.concatenate([u * scale, v * scale]).mean(axis=1))
        found.append(np.concatenate([np.mean(tokens, axis=0) for tokens in families.values()]))
    return np.stack(found)


def activations(subjects: Subjects, *, pooled: bool) -> Reals:
    """(n, width) Delta Activations: last hidden states on PROMPTS minus the base's, averaged over the prompts.

    Xu et al., 2025, "Delta Activations: A Representation for Finetuned Large Language Models", arXiv 2509.04442, take
    the last token of a decoder. ``pooled``: the mean of all tokens instead, as encoders are often read. Of an
    encoder-decoder the decoder's states count, which is given the prompt as well.
    """
    import torch
    import transformers
    from tokenizers import Tokenizer

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    family = subjects.family
    tokenizer = Tokenizer.from_file(str(family.models / family.plan.base / "tokenizer.json"))
    inputs = [torch.tensor([tokenizer.encode(prompt).ids]) for prompt in PROMPTS]

    def states(model: Any) -> NDArray[Any]:
        found = []
        with torch.no_grad():
            for ids in inputs:
                decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
                output = model.eval()(input_ids=ids, output_hidden_states=True, **decoder)
                hidden = (output.decoder_hidden_states if decoder else output.hidden_states)[-1][0]
                found.append((hidden.mean(dim=0) if pooled else hidden[-1]).double().numpy())
        return np.array(found)

    base = states(language_model(family.models / family.plan.base, family.plan))
    tuned = [states(tuned_body(family.models, model, family.plan)) for model in subjects.labelled.models]
    return np.stack([(one - base).mean(axis=0) for one in tuned])


def language_model(folder: Path, plan: Plan) -> Any:
    """A checkpoint of the family with the head of its own language task."""
    import torch
    import transformers

    kind = getattr(transformers, LANGUAGE_MODELS[plan.architecture.language_task])
    return kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32, ignore_mismatched_sizes=True)


def tuned_body(root: Path, model: str, plan: Plan) -> Any:
    """The body of a fine-tune with the base's head.

    Raises ValueError if the base has no place for a weight of an adapter.
    """
    folder, base = root / model, language_model(root / plan.base, plan)
    if (folder / "adapter_config.json").is_file():
        from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
        from safetensors.torch import load_file

        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        settings |= {"task_type": None, "modules_to_save": None, "inference_mode": True}
        adapted = get_peft_model(base, LoraConfig(**{name: settings[name] for name in settings if name in _FIELDS}))
        # T5's classifiers hold its stacks in a module of this name, its language model holds them itself.
        inner = "" if hasattr(base, base.base_model_prefix) else f"{base.base_model_prefix}."
        weights = {
            name.replace(f"base_model.model.{inner}", "base_model.model.", 1): one
            for name, one in load_file(folder / "adapter_model.safetensors").items()
            if ".lora_" in name
        }
        loaded: Any = set_peft_model_state_dict(adapted, weights)
        if unknown := loaded.unexpected_keys:
            raise ValueError(f"{model} has adapter weights that the base has no place for, such as {unknown[0]}")
        return adapted.merge_and_unload()
    tuned = language_model(folder, plan)
    # What is tied to the embedding stays the fine-tune's.
    head, embedding = plan.architecture.language_head, base.get_input_embeddings().weight
    own = {name: one for name, one in base.get_submodule(head).named_parameters() if one is not embedding}
    tuned.get_submodule(head).load_state_dict(own, strict=False)
    return tuned


_FIELDS = ("r", "lora_alpha", "target_modules", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "task_type", "modules_to_save",
           "inference_mode", "layers_to_transform", "layers_pattern", "fan_in_fan_out")  # fmt: skip


def card_similarities(texts: Sequence[str]) -> Reals:
    """(n, n) cosines of tf-idf vectors (Salton & Buckley, 1988); nan for an empty text."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"[A-Za-z]{2,}")
    return cosines(vectorizer.fit_transform(texts).toarray())


def card(folder: Path, names: Iterable[str], *, hidden: bool) -> str:
    """The text of a model card; ``hidden``: without the fields and the words that name the model or its data sets."""
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if not hidden:
        return text
    front = _FRONT.match(text)
    fields = yaml.safe_load(front[1]) if front else None
    kept = {name: value for name, value in (fields or {}).items() if name not in ("datasets", "model-index")}
    body = re.sub(r"^# .*$", "", text[front.end() if front else 0 :], count=1, flags=re.MULTILINE)
    for name in sorted({part for one in names for part in (one, one.rpartition("/")[2])}, key=len, reverse=True):
        body = re.sub(re.escape(name), "", body, flags=re.IGNORECASE)
    return f"{yaml.safe_dump(kept)}\n{body}" if kept else body


def label_names(names: Sequence[frozenset[str] | None]) -> Reals:
    """(n, n) Jaccard's index of the label names of the heads; nan for a model without names."""
    found = np.full((len(names),) * 2, np.nan)
    for row, mine in enumerate(names):
        for column, theirs in enumerate(names):
            if mine and theirs:
                found[row, column] = len(mine & theirs) / len(mine | theirs)
    return found


class _Factors(NamedTuple):
    """Of one matrix of one model, as float32."""

    u: NDArray[np.float32]
    s: NDArray[np.float32]
    v: NDArray[np.float32]
    norm: float


def _deltas(records: Sequence[Record], place: int) -> Iterator[_Factors]:
    """One matrix of every model."""
    for record in records:
        delta = record.deltas[place]
        assert delta.u is not None
        assert delta.v is not None
        yield _Factors(delta.u.astype(np.float32), delta.s, delta.v.astype(np.float32), delta.norm)
