"""Sources for `rtf.sources.data_source` that record the requested indices."""


class Source:
  """The squares of 0 to n - 1. Records the requested indices."""

  def __init__(self, n, fails=()):
    self.n = n
    self.fails = fails
    self.asked = []

  def __len__(self):
    return self.n

  def __getitem__(self, index):
    self.asked.append(index)
    return self.element(index)

  def element(self, index):
    if index >= self.n:
      raise IndexError(index)
    if index in self.fails:
      raise KeyError(f"no {index}")
    return index * index


class Batched(Source):
  """The same source, which can also be read in batches."""

  def __getitems__(self, indices):
    self.asked.append(list(indices))
    return [self.element(index) for index in indices]
