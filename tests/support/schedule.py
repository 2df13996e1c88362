"""The schedule in plain Python: the fresh samples of an epoch, the generations, and the order of all samples.

A second implementation of refurbish_tf/cc/plan/, to read and to compare with.
"""

import fractions

MASK = 2**64 - 1
# The purposes that random numbers are derived for.
EVICTION, ORDER, PHASE, PARTIAL_FN, FINAL_FN = range(1, 6)
KEPT = 8
# Up to this number an order is shuffled; above it a permutation is computed. Also the number of samples in a chunk.
MOST_SHUFFLED = CHUNK = 2**16


def mix(word):
  """The finalizer of SplitMix64 (Steele et al., 2014)."""
  word = (word + 0x9E3779B97F4A7C15) & MASK
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
  word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
  return word ^ word >> 31


def unmix(word):
  """The inverse of `mix`."""

  def unshift(word, bits):
    found = word
    for _ in range(64 // bits + 1):
      found = word ^ found >> bits
    return found

  word = unshift(word, 31) * pow(0x94D049BB133111EB, -1, 2**64) & MASK
  word = unshift(word, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
  return (unshift(word, 30) - 0x9E3779B97F4A7C15) & MASK


def key(seed, purpose, counter=0):
  return mix(mix(mix(seed & MASK) ^ purpose) ^ counter)


class Random:
  """Random numbers determined by a key."""

  def __init__(self, of_key):
    self.state = of_key

  def next(self):
    word, self.state = mix(self.state), (self.state + 0x9E3779B97F4A7C15) & MASK
    return word

  def below(self, bound):
    """Uniform, without bias (Lemire, 2019)."""
    while True:
      product = (self.next() >> 32) * bound
      if product % 2**32 >= 2**32 % bound:
        return product >> 32

  def shuffle(self, values):
    for size in range(len(values), 1, -1):
      other = self.below(size)
      values[size - 1], values[other] = values[other], values[size - 1]


def network(of_key, size):
  """A permutation of the numbers below `size`, as a function: a Feistel network, repeated until the result is below
  `size`."""
  bits = ((size - 1).bit_length() + 1) // 2
  num_upper = ((size - 1) >> bits) + 1

  def permuted(number):
    upper, lower = number >> bits, number % 2**bits
    for i in range(0, 8, 2):
      lower = (lower + (mix(of_key ^ (i << 32 | upper)) >> 32)) % 2**bits
      upper = (upper + ((mix(of_key ^ (i + 1 << 32 | lower)) >> 32) * num_upper >> 32)) % num_upper
    number = upper << bits | lower
    return number if number < size else permuted(number)

  return permuted


def permutation(random, size):
  """The numbers below `size` in random order."""
  if size > MOST_SHUFFLED:
    return list(map(network(random.next(), size), range(size)))
  numbers = list(range(size))
  random.shuffle(numbers)
  return numbers


def stateless_seed(seed, purpose, counter, index):
  """A seed for `tf.random.stateless_*`, as two unsigned 32-bit numbers."""
  word = mix((index << 32 | counter) ^ key(seed, purpose))
  return word >> 32, word & 2**32 - 1


def index_of(seed, purpose, stateless):
  """The index that a stateless seed (two 32-bit numbers) was made for, with any counter."""
  first, second = (int(number) & 2**32 - 1 for number in stateless)
  return (unmix(first << 32 | second) ^ key(seed, purpose)) >> 32


class Schedule:
  """The schedule of a run over `n` samples, of which the store can keep `capacity`."""

  def __init__(self, seed, n, r, *, order_seed=None, capacity=None, eviction="balanced", shuffle="cache_aware"):
    self.seed, self.n, self.r, self.eviction, self.shuffle = seed, n, fractions.Fraction(float(r)), eviction, shuffle
    self.order_seed = seed if order_seed is None else order_seed
    self.capacity = n if capacity is None else min(capacity, n)
    by_key = range(n)
    if self.capacity < n:
      # Each sample has a row in its chunk. Samples in the first rows are kept.
      rows = [network(key(seed, KEPT, chunk), CHUNK) for chunk in range(n // CHUNK + 1)]
      by_key = sorted(range(n), key=lambda i: (rows[i // CHUNK](i % CHUNK), i))
    # Kept and other samples, each by chunk, then by row. The kept samples are evicted in an order of their own.
    kept, self.others = (
      sorted(part, key=lambda i: i // CHUNK) for part in (by_key[: self.capacity], by_key[self.capacity :])
    )
    self.evicted = [kept[number] for number in permutation(Random(key(seed, EVICTION)), self.capacity)]
    self.rank = {index: rank for rank, index in enumerate(self.evicted)}

  def kept(self, index):
    return index in self.rank

  def hand(self, epoch):
    """How often all kept samples were evicted before the epoch, and how many of them were evicted once more."""
    if self.eviction == "reference_count" or self.capacity == 0:
      return int(epoch / self.r), 0
    return divmod(int(epoch * self.capacity / self.r), self.capacity)

  def generation(self, index, epoch):
    """How often the sample was evicted before the epoch; for a sample that is not kept, the epoch."""
    if not self.kept(index):
      return epoch
    rounds, position = self.hand(epoch)
    return rounds + (self.rank[index] < position)

  def epoch(self, epoch):
    """The indices of all samples, in the order of the epoch."""
    fresh, cached = list(range(self.n)), []
    if epoch > 0:
      (rounds, first), (rounds_now, position) = self.hand(epoch - 1), self.hand(epoch)
      number = (rounds_now - rounds) * self.capacity + position - first
      if number + len(self.others) < self.n:
        evicted = self.evicted[first:] + self.evicted[:first]
        fresh, cached = evicted[:number] + list(self.others), evicted[number:]
    random = Random(key(self.order_seed, ORDER, epoch))
    if self.shuffle == "uniform":
      return [(fresh + cached)[place] for place in permutation(random, self.n)]
    fresh, cached = ([part[place] for place in permutation(random, len(part))] for part in (fresh, cached))
    # Place k is fresh if k * F / N + phase / N passes a whole number there.
    number, phase = len(fresh), Random(key(self.order_seed, PHASE, epoch)).below(self.n)
    fresh, cached = iter(fresh), iter(cached)
    return [
      next(fresh if ((k + 1) * number + phase) // self.n > (k * number + phase) // self.n else cached)
      for k in range(self.n)
    ]
