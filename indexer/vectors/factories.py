"""FAISS factory strings that this project understands: read strictly, sized before anything is built, chosen by rule.

FAISS's own parser is not asked first: strings such as "PQ48x0" or "HNSW0" end the process instead of raising. OPQ
is left out, as it trains for minutes even on short vectors: RR, a random rotation, spreads a vector evenly over a code
in no time. So is Refine, a second copy of the vectors: the exact ones decide in any case.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from indexer.errors import AtlasError
from indexer.vectors.directions import working_bytes

# FAISS's k-means asks for this many vectors for each centroid.
POINTS_PER_CENTROID = 39

# Memory for finding directions, beside the sample that they are found in.
TRAINING_BYTES = 512 << 20

# The vectors that an index is trained on, at most.
SAMPLE_BYTES = 512 << 20

# Inverted lists: fewer do not pay, more take long to train.
FEWEST_LISTS, MOST_LISTS = 16, 1024

# Code: (bits for each number, bytes beside them). A RaBitQ of several bits keeps its factors twice.
CODES = {
    "Flat": (32, 0),
    "SQfp16": (16, 0),
    "SQbf16": (16, 0),
    "SQ8": (8, 0),
    "SQ6": (6, 0),
    "SQ4": (4, 0),
    "RaBitQ": (1, 8),
    "RaBitQfs": (1, 8),
    **{f"RaBitQ{bits}": (bits, 20) for bits in range(2, 10)},
}

# In the order in which they are tried: smaller and quicker ones first. Recall@10 of 60,000 vectors of 4,104 numbers
# drawn with the statistics of real models (scripts/scale) with 200 and 1,000 candidates, and bytes a vector without
# its id: PCA128,SQ8 .69, .77, 128; PQ513x4fs .87, .93, 257; PCA512,SQ8 .89, .94, 512; RaBitQ2 .97, .998, 1,046; SQ4
# 1.0, 1.0, 2,052. Where models lie near few directions the first finds .98 already, with 64. Without their centre they
# do not: of 100,000 such vectors of 8,208 numbers PCA256,RR,PQ128x4fs finds .79 with 1,000 candidates, PCA512 with SQ8
# .84, PCA1024 .87, RaBitQ .97 (in 32 ms), RaBitQ2 .985 with 200 (in 75). A RaBitQ codes what is left without a centre:
# that of all vectors keeps their order better than one for each list (256 lists, all of them visited: .905 and .977
# with 1,000), so it has no lists.
LADDER = (
    "PCA256,RR,PQ128x4fs",
    "PQ{eighths}x4fs",
    "PCA512,{lists}SQ8",
    "PCA1024,{lists}SQ8",
    "RaBitQ",
    "RaBitQ2",
    "{lists}SQ4",
    "{lists}SQ8",
)

# Half a byte for each of so many parts is as much as sums of a fast scan hold.
MOST_PARTS = 600

UNDERSTOOD = (
    "Understood are [PCAm,][RR,][IVFn,]CODE and [PCAm,]HNSWm[,CODE], with CODE one of Flat, SQ4, SQ6, SQ8, SQfp16, "
    "SQbf16, PQm, PQmx4, PQmx4fs, PQmx6, PQmx8, PQmx10, PQmx12, RaBitQ, RaBitQfs, RaBitQ2 to RaBitQ9 (HNSW: Flat or "
    "SQ); for example PCA256,IVF256,SQ8. `auto` chooses one."
)

_NUMBER = "[1-9][0-9]{0,4}"
_PLAIN = "Flat|SQ4|SQ6|SQ8|SQfp16|SQbf16"
_GRAMMAR = re.compile(
    rf"(?:PCA(?P<principal>{_NUMBER}),)?"
    rf"(?P<rest>(?P<rotated>RR,)?(?:IVF(?P<lists>{_NUMBER}),)?"
    rf"(?P<code>{_PLAIN}|PQ(?P<parts>{_NUMBER})(?:x(?P<bits>4fs|[468]|10|12))?|RaBitQ(?:fs|[2-9])?)"
    rf"|HNSW(?P<links>{_NUMBER})(?:[,_](?P<leaf>{_PLAIN}))?)"
)


@dataclass(frozen=True)
class Factory:
    """A factory string that was understood, for vectors of ``length`` numbers.

    ``kept``: numbers left after ``principal`` directions were taken (0: all are kept). ``rest``: what FAISS builds
    on them. ``centroids``: the largest number that one k-means has to find.
    """

    text: str
    length: int
    principal: int
    rest: str
    lists: int
    graph: bool
    centroids: int
    bytes_each: float
    bytes_once: int

    @property
    def kept(self) -> int:
        """Numbers of a vector that the codes are made of."""
        return self.principal or self.length

    def bytes(self, count: int) -> int:
        """Bytes of an index of ``count`` vectors, ids included."""
        return math.ceil(self.bytes_once + self.bytes_each * count)

    def check(self, count: int, memory: int) -> None:
        """Raises AtlasError where ``count`` vectors are too few to train on or too many for ``memory`` bytes.

        Also where finding the directions would take more than TRAINING_BYTES.
        """
        fewest = max(self.principal, POINTS_PER_CENTROID * self.centroids, 2)
        if count < fewest:
            raise AtlasError(
                f"The index {self.text} needs at least {fewest:,} vectors to be trained on; there are {count:,}.",
                "Take smaller numbers in it, or `exact`, which is quick for so few.",
            )
        if self.bytes(count) > memory:
            raise AtlasError(
                f"The index {self.text} takes {self.bytes(count):,} bytes for {count:,} vectors; "
                f"{memory:,} are allowed.",
                "Allow it more memory, or take `auto`, which chooses one that fits.",
            )
        training = working_bytes(self.length, self.principal) if self.principal else 0
        if training > TRAINING_BYTES:
            raise AtlasError(
                f"The index {self.text} takes {training:,} bytes to be trained on vectors of {self.length:,} numbers; "
                f"{TRAINING_BYTES:,} are allowed.",
                "Take fewer directions, or none.",
            )


def is_understood(text: str) -> bool:
    """Whether a factory string is one of those that can be built, whatever the vectors."""
    return _GRAMMAR.fullmatch(text) is not None


def words_of(text: str) -> dict[str, str]:
    """The parts of a factory string that is understood, by name; empty where there is none."""
    found = _GRAMMAR.fullmatch(text)
    return {} if found is None else {name: word or "" for name, word in found.groupdict().items()}


def read_factory(text: str, length: int) -> Factory:
    """What a factory string asks for. Raises AtlasError where it is not understood or does not fit ``length``."""
    found = _GRAMMAR.fullmatch(text)
    if found is None:
        raise AtlasError(f"{text[:60]!r} is not an index that can be built.", UNDERSTOOD)
    principal, lists, links, parts = (int(found[name] or 0) for name in ("principal", "lists", "links", "parts"))
    if principal >= length:
        raise AtlasError(f"PCA{principal} in {text}: the vectors have only {length:,} numbers.", "Take fewer.")
    kept = principal or length
    if parts and kept % parts:
        raise AtlasError(f"PQ{parts} in {text}: {parts} does not divide {kept:,}, the length of what it codes.")
    if links and not 4 <= links <= 64:
        raise AtlasError(f"HNSW{links} in {text}: a vector needs between 4 and 64 links.")
    bits = int((found["bits"] or "8").removesuffix("fs"))
    each = parts * bits / 8 if parts else _code_bytes(found["code"] or found["leaf"] or "Flat", kept)
    # The id of a vector, once more in an inverted list; in a graph two rows of links below, its level and offset.
    each += 8 + (8 if lists else 0) + (8 * links + 16 if links else 0)
    once = 4 * (length * principal + (kept**2 if found["rotated"] else 0) + kept * (lists + (parts and 2**bits)))
    return Factory(
        text=text,
        length=length,
        principal=principal,
        rest=found["rest"],
        lists=lists,
        graph=bool(links),
        centroids=max(lists, 2**bits if parts else 0),
        bytes_each=each,
        bytes_once=once,
    )


def auto_factories(count: int, length: int, memory: int) -> list[str]:
    """Those of LADDER that ``count`` vectors of ``length`` numbers can train and ``memory`` bytes can hold, in order.

    Empty where nothing fits.
    """
    fitting = []
    for template in LADDER:
        if "{eighths}" in template and (length % 8 or length // 8 > MOST_PARTS):
            continue
        principal = re.match("PCA([0-9]+)", template)
        lists = _lists(count, int(principal[1]) if principal else length)
        try:
            factory = read_factory(template.format(lists=lists, eighths=length // 8), length)
            factory.check(count, memory)
        except AtlasError:
            continue
        fitting.append(factory.text)
    return fitting


def _lists(count: int, kept: int) -> str:
    """Inverted lists for ``count`` vectors of ``kept`` numbers, as a factory string begins; none where they do not pay.

    As many as the square root of ``count``, a power of two, so that comparing with the centroids costs less than what
    the lists save, and as can be trained on a sample that fits.
    """
    trained = SAMPLE_BYTES // (4 * kept * POINTS_PER_CENTROID)
    most = min(math.isqrt(count), count // POINTS_PER_CENTROID, trained, MOST_LISTS)
    return f"IVF{1 << (most.bit_length() - 1)}," if most >= FEWEST_LISTS else ""


def _code_bytes(code: str, kept: int) -> float:
    bits, beside = CODES[code]
    return math.ceil(kept * bits / 8) + beside
