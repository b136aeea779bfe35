"""What the product says of each run, compared with its replay, and the tables of it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from tokenizers import Tokenizer

from indexer.checkpoints.checkpoint import Checkpoint, open_checkpoint
from indexer.deltas.embeddings import EmbeddingReader, embedding_names, is_head_tied
from indexer.deltas.stored_base import TOKENS
from indexer.records.tokens import EXACT, UNSURE, row_changes, sizes_of, token_rows
from indexer.sources.registry import ModelRef
from query.questions.trace.evidence import TokenEvidence
from query.questions.trace.texts import CERTAIN, USUAL_LENGTH, ComparedTexts, compare_texts, kept_tokens
from query.questions.trace.trace import _OFFSETS
from scripts.family.tasks import MASK, PADDING
from scripts.tables import markdown
from studies.trace.making import Maker, base_id
from studies.trace.plan import BASES, Run
from studies.trace.texts import LocalTokenizer
from studies.trace.training import Replay

PLANTED = (0.0, 0.01, 0.1, 0.5, 1.0)
FILE_TEXTS = 100
FILES = 10  # of each share
MOST_UNUSED = 300
HAS_ENDS = ("bert", "roberta")  # of each text, two special tokens
NOT_SEEN, NO_GRADIENT, NO_MARK, MISSED = CAUSES = ("not seen", "no gradient", "no mark", "missed")


@dataclass(frozen=True)
class Claims:
    """What the product says of a model; ``codes`` (V,) of every row of the base's vocabulary."""

    kind: str
    codes: NDArray[np.uint8]
    scale: float
    positions: int | None
    pairs: bool | None
    is_share: bool

    @property
    def masked(self) -> bool | None:
        """Whether the row of the mask token moved, where that means anything."""
        return bool(self.codes[MASK] not in (0, UNSURE)) if self.kind == EXACT else None

    @property
    def kept(self) -> int | None:
        """How many tokens of a text count, where that is known."""
        return kept_tokens(self.positions, self.pairs)

    def judged(self, texts: Sequence[str], tokenizer: Any, length: int | None = None) -> ComparedTexts:
        """What ``query trace --text`` says of texts; ``length``: what ``--max-length`` would say."""
        evidence = TokenEvidence(
            self.kind, np.arange(len(self.codes)), self.codes, self.is_share, self.scale, len(self.codes),
            len(self.codes), self.positions, self.pairs,
        )  # fmt: skip
        met = evidence.is_met.astype(np.float64)
        return compare_texts(texts, tokenizer, evidence, met, length or self.kept, each=True)


def claims_of(maker: Maker, run: Run) -> Claims | None:
    """Ask the product; None where it cannot compare the rows."""
    base, tuned = (open_checkpoint(ModelRef.parse(str(maker.root / name))) for name in (base_id(run.base), run.model))
    whole = {kind: whole_tensor(base, name) for kind, name in embedding_names(base).items()}
    name = tuned.token_embedding
    if name is None:
        return None
    rows = whole_tensor(tuned, name)[: len(whole[TOKENS])]
    if rows.shape[1] != whole[TOKENS].shape[1]:
        return None
    dtype = str(rows.dtype).removeprefix("torch.")
    compared = row_changes(rows, whole[TOKENS][: len(rows)], dtype, tied=is_head_tied(tuned))
    if compared is None:
        return None
    found = compared[0]
    vocabulary = len(whole[TOKENS])
    sampled = {**whole, TOKENS: whole[TOKENS][token_rows(vocabulary)]}
    reader = EmbeddingReader(tuned, sampled, vocabulary)
    changes = reader.changes(dict(tuned.stripes(reader.stripes)))
    # Where the embedding of tokens alone was trained, the others say nothing.
    known = changes if run.make != "table" else None
    offset = _OFFSETS.get(BASES[run.base].architecture, 0)
    return Claims(
        found.kind,
        found.codes,
        found.scale,
        known.positions - offset if known and known.positions else None,
        known.pairs if known else None,
        found.is_share,
    )


def whole_tensor(checkpoint: Checkpoint, name: str) -> Any:
    """All rows of a matrix."""
    (found,) = [rows for _, rows in checkpoint.stripes({name: [range(checkpoint.tensors[name].shape[0])]})]
    return found


def check_run(maker: Maker, run: Run) -> dict[str, Any]:
    """Rows, texts and other claims of one run."""
    replay = Replay.load(maker.replay_path(run))
    claims = claims_of(maker, run)
    row: dict[str, Any] = {
        "run": run.name,
        "architecture": BASES[run.base].architecture,
        "optimizer": run.optimizer,
        "saved": run.saved,
        "kind": claims.kind if claims else "none",
    }
    if claims is None:
        return row
    size = len(claims.codes)
    counted = np.arange(size) != PADDING
    met = replay.met[:size] & counted
    never = ~replay.met[:size] & counted
    is_zero, is_unsure = claims.codes == 0, claims.codes == UNSURE
    sizes = sizes_of(claims.codes)
    row |= {
        "met": int(met.sum()),
        "met_called_untouched": int((met & is_zero).sum()),
        # A token that no gradient can reach, as the last of a causal input, is no fault of the threshold. Neither is
        # one that was met in steps too small to change a bit of its row.
        "of_these_without_gradient": int((met & is_zero & (replay.gradients[:size] == 0)).sum()),
        "of_these_without_mark": int((met & is_zero & (replay.gradients[:size] > 0) & ~replay.marked[:size]).sum()),
        "never": int(never.sum()),
        "never_called_met": int((never & ~is_zero & ~is_unsure).sum()),
        "unsure": int((is_unsure & counted).sum()),
        "c": claims.scale,
        "c_true": replay.scale,
        "positions": claims.positions,
        "longest": replay.longest,
        "pairs": claims.pairs,
        "pairs_true": replay.pairs,
        "masked": claims.masked,
        "masked_true": replay.masked,
    }
    if claims.kind == EXACT:
        row["spearman"] = correlation(sizes[met], replay.counts[:size][met])
    elif claims.is_share:
        stood = (replay.counts[:size] + replay.targets[:size]) > 0
        row["spearman"] = correlation(
            sizes[stood & counted], np.maximum(replay.counts, replay.targets)[:size][stood & counted]
        )
        if (stood & counted).any() and (~stood & counted).any():
            row["auc"] = float(roc_auc_score(stood[counted], sizes[counted]))
    untouched = is_zero if claims.kind == EXACT else np.zeros(size, dtype=bool)
    own_file = maker.folder(run.name) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(own_file)) if run.added else maker.tokenizer(run.base)
    local = LocalTokenizer(tokenizer)
    known = set(replay.given)
    own = [text for text, _ in maker.texts()[run.dataset].rows if text not in known][:MOST_UNUSED]
    others = [text for name, data in maker.texts().items() if name != run.dataset for text, _ in data.rows]
    others = random.Random(0).sample([text for text in others if text not in known], MOST_UNUSED)
    row |= {"used": len(replay.given), "seen_certified": sum(any_untouched(ids, untouched) for ids in replay.seen)}
    if claims.kind != EXACT:
        return row | {"used_certified": 0, "cut_certified": 0, "unused_own": 0.0, "unused_others": 0.0}
    # As it asks by itself, and as one who knows how training cut texts would ask: `--max-length`.
    cause = causes(replay, claims.judged(replay.given, local), tokenizer, untouched, claims.kept)
    cut = tokens_kept(run)
    with_cut = causes(replay, claims.judged(replay.given, local, cut), tokenizer, untouched, cut)
    row |= {
        "used_certified": sum(one not in ("", NO_MARK) for one in cause),
        "used_without_mark": cause.count(NO_MARK),
        "causes": {name: cause.count(name) for name in CAUSES},
        "cut_certified": sum(one not in ("", NO_MARK) for one in with_cut),
        "unused_own": (claims.judged(own, local).certainly_not_used or 0) / len(own),
        "unused_others": (claims.judged(others, local).certainly_not_used or 0) / len(others),
    }
    with_mark = [text for text, one in zip(replay.given, cause, strict=True) if one != NO_MARK]
    if min(len(with_mark), len(own)) >= FILE_TEXTS // 4:
        row["limits"] = {str(planted): limits(claims, local, with_mark, own, planted) for planted in PLANTED}
    return row


def causes(
    replay: Replay, judged: ComparedTexts, tokenizer: Tokenizer, untouched: NDArray[np.bool_], kept: int | None
) -> list[str]:
    """Of every used text why it is certified absent, one of CAUSES, or "" if it is not.

    MISSED: by the row of a token that training changed. NO_MARK: by rows of which it changed no bit, although they had a
    gradient: the steps that met them were too small, and no certificate says that there were none such. NO_GRADIENT: by a
    token that no gradient can reach. NOT_SEEN: by one that the network never got, behind a cut or of another reading.
    """
    found = []
    size = len(untouched)
    met, has_gradient, marked = replay.met[:size], replay.gradients[:size] > 0, replay.marked[:size]
    for text, one in zip(replay.given, judged.by_text or (), strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids[: kept or USUAL_LENGTH]
        if one.verdict != CERTAIN:
            found.append("")
        elif any_untouched(ids, untouched & met & marked):
            found.append(MISSED)
        elif any_untouched(ids, untouched & met & ~has_gradient):
            found.append(NO_GRADIENT)
        elif any_untouched(ids, untouched & met):
            found.append(NO_MARK)
        else:
            found.append(NOT_SEEN)
    return found


def any_untouched(ids: Iterable[int], untouched: NDArray[np.bool_]) -> bool:
    """Whether a text has an untouched token; added tokens are not known."""
    return any(untouched[token] for token in ids if token < len(untouched))


def correlation(sizes: NDArray[np.float64], counts: NDArray[np.int64]) -> float | None:
    """Spearman's; None where either is constant."""
    if len(sizes) < 3 or np.ptp(sizes) == 0 or np.ptp(counts) == 0:
        return None
    return float(spearmanr(sizes, counts).statistic)


def tokens_kept(run: Run) -> int:
    """How many tokens of a text training keeps at least, its special tokens apart and those without a gradient.

    Half of a pair is for each text. The last token of an input to a causal head predicts nothing.
    """
    length = run.longest // 2 if run.task == "pairs" else run.longest
    architecture = BASES[run.base].architecture
    if architecture in HAS_ENDS:
        return length - 2
    return length - (architecture == "t5" or run.task == "language")


def limits(
    claims: Claims, tokenizer: Any, used: Sequence[str], unused: Sequence[str], planted: float
) -> dict[str, float]:
    """The product's upper limits of the share that was used, over files of which a known share was.

    ``covered``: share of the files whose limit is not below the truth. ``limit``: its mean.
    """
    found = []
    for seed in range(FILES):
        texts, true = planted_file(used, unused, planted, seed)
        limit = claims.judged(texts, tokenizer).share_upper
        found.append((1.0 if limit is None else limit, true))
    return {
        "covered": sum(limit >= true for limit, true in found) / len(found),
        "limit": sum(limit for limit, _ in found) / len(found),
        "true": sum(true for _, true in found) / len(found),
    }


def planted_file(used: Sequence[Any], unused: Sequence[Any], share_used: float, seed: int) -> tuple[list[Any], float]:
    """A file of texts of which a share was used, and that share exactly; no text is taken twice."""
    order = random.Random(seed)
    count = min(round(share_used * FILE_TEXTS), len(used))
    texts = [
        *order.sample(list(used), count),
        *order.sample(list(unused), min(round((1 - share_used) * FILE_TEXTS), len(unused))),
    ]
    order.shuffle(texts)
    return texts, count / len(texts) if texts else 0.0


# ---- tables

Row = Mapping[str, Any]


def shown(value: Any) -> str:
    """Three digits of a number; a dash for nothing."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table of values."""
    return markdown([headings, *([shown(cell) for cell in row] for row in rows)])


def check_tables(found: Sequence[Row]) -> str:
    """One line for each architecture and class, and a total; the share of a file that was used; what is wrong."""
    parts = []
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        groups.setdefault((row["architecture"], row["kind"]), []).append(row)
    lines = [group_line(architecture, kind, rows) for (architecture, kind), rows in sorted(groups.items())]
    lines.append(group_line("all", "all", found))
    parts.append(
        table(
            ["architecture", "class", "models", "met called untouched", "never met called met", "unsure", "used texts",
             "certified", "without a mark", "with the cut known", "unused certified", "of other data", "Spearman", "AUC", "length right", "pairs right", "masked right"],
            lines,
        )
    )  # fmt: skip
    shares = sorted({share for row in found for share in row.get("limits", {})}, key=float)
    if shares:
        lines = []
        for share in shares:
            rows = [row["limits"][share] for row in found if share in row.get("limits", {})]
            lines.append(
                [
                    share,
                    len(rows),
                    fmean(row["covered"] for row in rows),
                    min(row["covered"] for row in rows),
                    fmean(row["limit"] for row in rows),
                ]
            )
        parts.append(
            table(
                ["share of a file used", "exact models", "limit covers it", "in the worst model", "mean limit"], lines
            )
        )
    wrong = [row["run"] for row in found if row.get("used_certified")]
    without = sum(row.get("used_without_mark") or 0 for row in found)
    parts.append(f"Used texts certified absent that changed no bit of the rows it is by: {without}")
    parts.append(
        f"Used texts certified absent though training changed such a row: {sum(row.get('used_certified') or 0 for row in found)}{': ' if wrong else ''}{', '.join(wrong)}"
    )
    return "\n\n".join(parts)


def group_line(architecture: str, kind: str, rows: Sequence[Row]) -> list[Any]:
    """Sums of counts and means of shares."""

    def total(name: str) -> int:
        return sum(row.get(name) or 0 for row in rows)

    def mean(name: str) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return fmean(values) if values else None

    def right(claim: str, truth: str) -> str:
        made = [row for row in rows if row.get(claim) is not None]
        return f"{sum(row[claim] == row[truth] for row in made)} of {len(made)}"

    return [
        architecture, kind, len(rows), total("met_called_untouched"), total("never_called_met"), total("unsure"),
        total("used"), total("used_certified"), total("used_without_mark"), total("cut_certified"), mean("unused_own"), mean("unused_others"), mean("spearman"), mean("auc"),
        right("positions", "longest"), right("pairs", "pairs_true"), right("masked", "masked_true"),
    ]  # fmt: skip
