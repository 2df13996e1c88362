"""The schedule in plain Python: which samples are fresh in an epoch, of which generation, and in which order all come.

A second implementation of refurbish_tf/cc/plan/, made to be read and compared with.
"""
import fractions

MASK = 2**64 - 1
# The purposes that random numbers are derived for.
EVICTION, ORDER, PHASE, PARTIAL_FN, FINAL_FN = range(1, 6)


def mix(word):
  """The finalizer of SplitMix64 (Steele et al., 2014)."""
  word = (word + 0x9e3779b97f4a7c15) & MASK
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9 & MASK
  word = (word ^ word >> 27) * 0x94d049bb133111eb & MASK
  return word ^ word >> 31


def unmix(word):
  """The inverse of `mix`."""
  def unshift(word, bits):
    found = word
    for _ in range(64 // bits + 1):
      found = word ^ found >> bits
    return found

  word = unshift(word, 31) * pow(0x94d049bb133111eb, -1, 2**64) & MASK
  word = unshift(word, 27) * pow(0xbf58476d1ce4e5b9, -1, 2**64) & MASK
  return (unshift(word, 30) - 0x9e3779b97f4a7c15) & MASK


def key(seed, purpose, counter=0):
  return mix(mix(mix(seed & MASK) ^ purpose) ^ counter)


class Random:
  """Random numbers determined by a key."""

  def __init__(self, of_key):
    self.state = of_key

  def below(self, bound):
    """Uniform, without bias (Lemire, 2019)."""
    while True:
      product = (mix(self.state) >> 32) * bound
      self.state = (self.state + 0x9e3779b97f4a7c15) & MASK
      if product % 2**32 >= 2**32 % bound:
        return product >> 32

  def shuffle(self, values):
    for size in range(len(values), 1, -1):
      other = self.below(size)
      values[size - 1], values[other] = values[other], values[size - 1]


def stateless_seed(seed, purpose, counter, index):
  """A seed for `tf.random.stateless_*`, as two unsigned 32-bit numbers."""
  word = mix((index << 32 | counter) ^ key(seed, purpose))
  return word >> 32, word & 2**32 - 1


def index_of(seed, purpose, stateless):
  """The index that a seed for `tf.random.stateless_*`, two 32-bit numbers, was made for, whatever its counter."""
  first, second = (int(number) & 2**32 - 1 for number in stateless)
  return (unmix(first << 32 | second) ^ key(seed, purpose)) >> 32


class Schedule:
  """The schedule of a run over `n` samples, of which the store can keep `capacity`."""

  def __init__(self, seed, n, r, *, order_seed=None, capacity=None, eviction="balanced", shuffle="cache_aware"):
    self.seed, self.n, self.r, self.eviction, self.shuffle = seed, n, fractions.Fraction(float(r)), eviction, shuffle
    self.order_seed = seed if order_seed is None else order_seed
    self.capacity = n if capacity is None else min(capacity, n)
    # The permutation in which samples are evicted. Its first `capacity` samples are the ones kept.
    evicted = sorted(range(n), key=lambda i: (mix(key(seed, EVICTION) ^ i) >> 32, i))
    self.rank = {index: rank for rank, index in enumerate(evicted)}

  def kept(self, index):
    return self.rank[index] < self.capacity

  def generation(self, index, epoch):
    """How often the sample has been evicted before the epoch; for a sample that is not kept, the epoch."""
    if not self.kept(index):
      return epoch
    if self.eviction == "reference_count":
      return int(epoch / self.r)
    rounds, position = divmod(int(epoch * self.capacity / self.r), self.capacity)
    return rounds + (self.rank[index] < position)

  def epoch(self, epoch):
    """The indices of all samples, in the order of the epoch."""
    fresh, cached = [], []
    for i in range(self.n):
      is_fresh = epoch == 0 or not self.kept(i) or self.generation(i, epoch) != self.generation(i, epoch - 1)
      (fresh if is_fresh else cached).append(i)
    random = Random(key(self.order_seed, ORDER, epoch))
    if self.shuffle == "uniform":
      places = list(range(self.n))
      random.shuffle(places)
      return [(fresh + cached)[place] for place in places]
    random.shuffle(fresh)
    random.shuffle(cached)
    # A place is fresh when k * F / N + phase / N passes a whole number at it.
    number, phase = len(fresh), Random(key(self.order_seed, PHASE, epoch)).below(self.n)
    fresh, cached = iter(fresh), iter(cached)
    return [next(fresh if ((k + 1) * number + phase) // self.n > (k * number + phase) // self.n else cached)
            for k in range(self.n)]
