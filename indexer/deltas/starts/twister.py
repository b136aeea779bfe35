"""The random numbers of PyTorch's CPU generator, and its state computed from some of them.

The generator is the Mersenne Twister MT19937 (Matsumoto & Nishimura, 1998, "Mersenne Twister: A 623-dimensionally
equidistributed uniform pseudo-random number generator"), seeded with the low 32 bits of the seed. NumPy's legacy
``RandomState`` is the same generator, seeded in the same way, so PyTorch is not needed here.

A float32 uniform number is made from the low 24 bits of one word. Normal numbers are made from blocks of 16 uniform
numbers (``normal_fill`` in ATen/native/cpu/DistributionTemplates.h): with x the block, x_j and x_{j+8} become
√(−2 ln(1 − x_j)) times the cosine and the sine of 2π x_{j+8} (Box & Muller, 1958).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]

WORDS = 624  # of a state
BITS = 24  # of a float32 uniform number
SHIFT = 397
MATRIX = np.uint32(0x9908B0DF)
_UPPER, _LOWER = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
SEEDING = 1_812_433_253  # of init_genrand in the authors' program of 2002
_HALF_BLOCK = 8
# Words that are made at a time.
_CHUNK = 1 << 22


def generator(seed: int) -> np.random.RandomState:
    """The generator after ``torch.manual_seed(seed)``."""
    return np.random.RandomState(seed & 0xFFFFFFFF)


def generator_at(state: Words) -> np.random.RandomState:
    """The generator whose next 624 words have these untempered values."""
    source = np.random.RandomState()
    source.set_state(("MT19937", state, 0, 0, 0.0))
    return source


def draw(source: np.random.RandomState, count: int) -> Words:
    """The next ``count`` words."""
    words: Words = source.randint(0, 1 << 32, size=count, dtype=np.uint32)
    return words


def skip(source: np.random.RandomState, count: int) -> None:
    """Pass over ``count`` words."""
    while count > 0:
        draw(source, min(count, _CHUNK))
        count -= _CHUNK


def uniform(words: Words) -> Floats:
    """One number from −1 to 1 for each word: ``2 · torch.rand() − 1``."""
    return (words & np.uint32((1 << BITS) - 1)).astype(np.float32) * np.float32(2.0 ** (1 - BITS)) - np.float32(1)


def normal(words: Words) -> Floats:
    """Standard normal numbers as ``torch.Tensor.normal_`` makes them of these words, at least 16.

    If the length of a tensor is no multiple of 16, its last 16 numbers are drawn again, from 16 more words.
    """
    count = len(words) if len(words) % 16 == 0 else len(words) - 16
    numbers = np.empty(count, np.float32)
    full = count // 16 * 16
    numbers[:full] = _box_muller(words[:full])
    if count % 16:
        numbers[-16:] = _box_muller(words[count:])
    return numbers


def normal_words(count: int) -> int:
    """How many words ``count`` normal numbers take."""
    return count if count % 16 == 0 else count + 16


def _box_muller(words: Words) -> Floats:
    first, second = ((uniform(words) + 1) / 2).reshape(-1, 2, _HALF_BLOCK).swapaxes(0, 1)
    radius, angle = np.sqrt(-2 * np.log1p(-first)), np.float32(2 * np.pi) * second
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).ravel()


def uniform_of_normal(numbers: NDArray[np.floating]) -> Floats:
    """The inverse of ``normal`` for full blocks of 16: numbers from −1 to 1; zeros for the numbers after them.

    It is a continuous function of the normal numbers except for a jump at angle 0, so if training moved the normal
    numbers a little, the results are near the numbers that were drawn.
    """
    full = len(numbers) // 16 * 16
    x, y = numbers[:full].astype(np.float64).reshape(-1, 2, _HALF_BLOCK).swapaxes(0, 1)
    first = 1 - np.exp(-(x**2 + y**2) / 2)
    second = np.arctan2(y, x) / (2 * np.pi) % 1
    uniform_numbers = np.zeros(len(numbers), np.float32)
    uniform_numbers[:full] = 2 * np.stack([first, second], axis=1).ravel() - 1
    return uniform_numbers


def untempered(words: Words) -> Words:
    """The values of the state from which these words were made."""
    y = words ^ (words >> np.uint32(18))
    y = y ^ ((y << np.uint32(15)) & np.uint32(0xEFC60000))
    x = y
    for _ in range(4):
        x = y ^ ((x << np.uint32(7)) & np.uint32(0x9D2C5680))
    y = x
    for _ in range(2):
        x = y ^ (x >> np.uint32(11))
    return x


def before(state: Words, count: int) -> Words:
    """The ``count`` values before a state of 624 (untempered), followed by the state.

    Each value follows from the values 624, 397 and 1 after it, so 226 are computed at a time.
    """
    values = np.zeros(count + WORDS, np.uint32)
    values[count:] = state

    def mixed(position: NDArray[np.intp]) -> Words:
        """The upper bit of the value at ``at`` and the lower bits of the next one."""
        twisted = values[position + WORDS] ^ values[position + SHIFT]
        bit = twisted >> np.uint32(31)
        return ((twisted ^ (bit * MATRIX)) << np.uint32(1)) | bit

    end = count
    while end > 0:
        index = np.arange(max(0, end - (WORDS - SHIFT - 1)), end)
        values[index] = (mixed(index) & _UPPER) | (mixed(index - 1) & _LOWER)
        end = int(index[0])
    return values


def seed_in(values: Words) -> tuple[int, int] | None:
    """The seed of a generator and the index of its initial state in consecutive values, the last if there are several.

    The first word of the seed is made from the value 624 after that index. The initial state is x₀ = seed,
    x_i = 1812433253 · (x_{i−1} ⊕ x_{i−1} ≫ 30) + i; of x₀ only the upper bit goes into later states.
    """
    wide = values.astype(np.uint64)
    is_next = np.ones(max(0, len(values) - 4), bool)
    for step in (2, 3, 4):
        earlier = wide[step - 1 : step - 1 + len(is_next)]
        following = np.uint64(SEEDING) * (earlier ^ (earlier >> np.uint64(30))) + np.uint64(step)
        is_next &= (following & np.uint64(0xFFFFFFFF)) == wide[step : step + len(is_next)]
    indices = np.flatnonzero(is_next)
    if not len(indices):
        return None
    index = int(indices[-1])
    mixed = (int(values[index + 1]) - 1) * pow(SEEDING, -1, 1 << 32) & 0xFFFFFFFF
    return mixed ^ mixed >> 30, index
