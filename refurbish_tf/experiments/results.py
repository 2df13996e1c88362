"""The tables of the experiments: CSV files that come with the package and get a row for each training."""

import contextlib
import csv
import errno
import io
import math
import os
import pathlib
import platform
import resource
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import keras
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf._internal import machine
from refurbish_tf.experiments import images

DIRECTORY = pathlib.Path(__file__).parent / "results"
# Columns that say how a row was made. Their values stay text, even if they look like numbers.
PROVENANCE = ("command", "commit", "machine", "refurbish_tf", "tensorflow", "keras", "python")
# Columns with results. The other columns identify a row.
MEASURED = tuple(
  "steps fresh dice accuracy train_accuracy accuracies maps validation_images parameters seconds cpu_seconds "
  "seconds_by_epoch cpu_seconds_by_epoch input_cpu_seconds images_per_second cpu_microseconds read late_steps".split()
)
# The environment variable that names the commit of a copy without git.
COMMIT = "REFURBISH_TF_COMMIT"
# The probability that an interval contains the true value.
CONFIDENCE = 0.95


class Table:
  """Rows that some of their columns identify, in a CSV file and in another one for each process that has added rows.

  >>> import tempfile
  >>> table = Table(pathlib.Path(tempfile.mkdtemp()) / "some.csv", key=("r", "seed"), columns=("accuracy",))
  >>> table.add([{"r": 2, "seed": 1, "accuracy": 0.5}])
  1
  >>> table.has({"r": 2, "seed": 1}), table.has({"r": 2, "seed": 2})
  (True, False)
  >>> read(table.path)[0]["accuracy"]
  0.5

  Each process appends to its own file, some.csv or some.TIME-PROCESS.csv in the same folder, so it cannot damage the
  rows of other processes. A program that was stopped can resume with the missing rows.

  Args:
    path: the path of the table, whose folder is made if it is missing.
    key: the names of the columns that identify a row.
    columns: the names of the other columns, from `MEASURED`. The columns of `PROVENANCE` follow them.

  Attributes:
    path: the path of the table.

  Raises:
    ValueError: a file of the table has different columns, or a line with more or fewer values.
    OSError: files cannot be written there.
  """

  def __init__(self, path, key, columns):
    self.path = pathlib.Path(path)
    self._key = key
    self._heading = [*key, *columns, *PROVENANCE]
    # Determined at the start, because the code may change while the program runs.
    self._provenance = provenance()
    self._own = None
    # Errors should be raised here, not after the first training.
    try:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      if self.path.exists() and not self.path.is_file():
        raise OSError(errno.EINVAL, "it is not a file")
      tempfile.TemporaryFile(dir=self.path.parent).close()
    except OSError as error:
      raise OSError(
        f"--output must be a writable file, got {path} ({error.strerror}). Give another --output."
      ) from error
    heading = ",".join(self._heading)
    for file in _files(self.path):
      content = file.read_bytes()
      head = content.split(b"\n", 1)[0].decode(errors="replace").rstrip("\r")
      # A program that was killed may have written only a part of the heading.
      if head != heading and (b"\n" in content or not heading.startswith(head)):
        raise ValueError(self._refusal(file, head.split(",")))
    self.has(dict.fromkeys(key))

  def has(self, row):
    """Whether there is a row with the same values in all columns of the key, even from another process."""
    there = read(self.path) if _files(self.path) else []
    return any(all(known[name] == row[name] for name in self._key) for known in there)

  def add(self, rows):
    """Appends rows, together with the command, commit, machine and versions that made them.

    Rows that already exist, perhaps from another process, are skipped. All others are added together or not at all.

    Returns:
      The number of rows that were added.

    Raises:
      ValueError: the rows do not have the columns of the table.
      OSError: the file cannot be written. It is unchanged.
    """
    for row in rows:
      if {*row, *PROVENANCE} != {*self._heading}:
        raise ValueError(
          f"a row of {self.path} must have the columns {', '.join(self._heading)}, got {', '.join(row)}."
        )
    rows = [{**row, **self._provenance} for row in rows if not self.has(row)]
    if not rows:
      return 0
    self._own = self._own or self._made()
    with self._own.open("ab", buffering=0) as file:
      end, text = file.tell(), io.StringIO()
      writer = csv.DictWriter(text, self._heading, lineterminator="\n")
      if not end:
        writer.writeheader()
      writer.writerows(rows)
      left = memoryview(text.getvalue().encode())
      try:
        while left:
          left = left[file.write(left) :]
      except BaseException:
        file.truncate(end)
        raise
    return len(rows)

  def _made(self):
    """The path of a new file for this process: the table's own path if no process has made it yet."""
    for path in (self.path, self.path.with_name(f"{self.path.stem}.{time.time_ns()}-{os.getpid()}{self.path.suffix}")):
      with contextlib.suppress(FileExistsError):
        path.open("xb").close()
        return path
    raise FileExistsError(errno.EEXIST, "its name is taken")

  def _refusal(self, file, there):
    """Says what is wrong with a heading."""
    told = [
      f"{what} {', '.join(map(ascii, names))[:200]}"
      for what, names in (
        ("lacks", [name for name in self._heading if name not in there]),
        ("also has", [name for name in there if name not in self._heading]),
      )
      if names
    ]
    return (
      f"--output {file} must be a table of this experiment, got another file: its first line "
      f"{' and '.join(told) or 'has the columns in another order'}. It was not changed. Give another --output."
    )


def open_table(parser, path, key, columns, load):
  """The `Table` of a program, and its images, which `load()` returns. Errors end it, through `parser.error`."""
  try:
    return Table(path, key, columns), load()
  except (OSError, ValueError, images.DatasetError) as error:
    parser.error(str(error))


def read(path):
  """The rows of a table from all of its files, as dicts. Values that look like numbers become numbers.

  If two processes have made the same row, the first counts. A killed program's incomplete last line is not a row.

  Args:
    path: the path of a table, or the name of a table of the package, such as "accuracy".

  Raises:
    ValueError: a line has more or fewer values than the heading.
  """
  path = DIRECTORY / f"{path}.csv" if isinstance(path, str) and not path.endswith(".csv") else pathlib.Path(path)
  rows = {}
  for file in _files(path) or [path]:
    for row in _rows(file):
      rows.setdefault(tuple(value for name, value in row.items() if name not in MEASURED + PROVENANCE), row)
  return list(rows.values())


def summary(rows, by, column):
  """The mean and the spread of a column over the rows with the same value in `by`.

  >>> rows = [{"r": 1, "accuracy": 0.5}, {"r": 1, "accuracy": 0.7}, {"r": 2, "accuracy": 0.4}]
  >>> for r, (mean, spread, count) in summary(rows, "r", "accuracy").items():
  ...   print(r, round(mean, 2), round(spread, 2), count)
  1 0.6 0.14 2
  2 0.4 0.0 1

  Returns:
    A dict from the value of `by` to the mean, the sample standard deviation (0 for a single value), and the number.
  """
  return {value: (*mean_and_spread(group), len(group)) for value, group in grouped(rows, by, column).items()}


def grouped(rows, by, column=None):
  """The rows, or the values of a column, grouped by the column `by`, or by a tuple of several columns."""
  groups = {}
  for row in rows:
    group = row[by] if isinstance(by, str) else tuple(row[name] for name in by)
    groups.setdefault(group, []).append(row if column is None else row[column])
  return groups


def differ(one, other):
  """Whether two means differ by more than the sum of their spreads.

  >>> differ((0.503, 0.005, 3), (0.492, 0.004, 3)), differ((0.503, 0.005, 3), (0.497, 0.012, 3))
  (True, False)

  Args:
    one: mean, spread and number, from `summary`. With fewer than two values there is no spread, and the result is None.
    other: the same.
  """
  if min(one[2], other[2]) < 2:
    return None
  return abs(one[0] - other[0]) > one[1] + other[1]


def mean_and_spread(values):
  """The mean and the sample standard deviation, which is 0 for a single value."""
  return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def difference(ones, others):
  """The difference of two means, and half the width of its 95 % interval (Welch, 1947, with Student's t).

  If either has a single value, there is no interval, and the half width is None.
  """
  middle = statistics.mean(ones) - statistics.mean(others)
  if min(len(ones), len(others)) < 2:
    return middle, None
  variances = [statistics.variance(values) / len(values) for values in (ones, others)]
  if not any(variances):
    return middle, 0.0
  freedom = sum(variances) ** 2 / sum(
    variance**2 / (len(values) - 1) for variance, values in zip(variances, (ones, others))
  )
  return middle, student_t(freedom) * sum(variances) ** 0.5


def quotient(ones, others):
  """The quotient of two geometric means and both ends of its 95 % interval, from `difference` of the logarithms.

  If either has a single value, there is no interval, and both ends are None.
  """
  return of_logarithms(*difference(*([math.log(value) for value in values] for values in (ones, others))))


def of_logarithms(middle, half):
  """A quotient and both ends of its interval, from those of its logarithm. Without an interval both ends are None."""
  return math.exp(middle), *((None, None) if half is None else (math.exp(middle - half), math.exp(middle + half)))


def mean_interval(values):
  """The mean and half the width of its 95 % interval with Student's t, which is None for a single value."""
  middle, spread = mean_and_spread(values)
  return middle, student_t(len(values) - 1) * spread / len(values) ** 0.5 if len(values) > 1 else None


def seeds_needed(half, spread):
  """How many trainings each of two settings needs for half the interval of `difference` to be at most `half`.

  `spread` is the standard deviation of a training in both settings, in the same unit.
  """
  count = 2
  while student_t(2 * count - 2) * spread * (2 / count) ** 0.5 > half:
    count += 1
  return count


def student_t(freedom):
  """The bound such that Student's t is between plus and minus it with the probability `CONFIDENCE`."""
  below, above = 0.0, 1e4
  for _ in range(60):
    t = (below + above) / 2
    # The probability of both tails.
    tails = float(
      tf.math.betainc(*(tf.constant(value, tf.float64) for value in (freedom / 2, 0.5, freedom / (freedom + t * t))))
    )
    below, above = (t, above) if tails > 1 - CONFIDENCE else (below, t)
  return below


def markdown(heads, rows):
  """A Markdown table, with the first column aligned left and the others right.

  >>> print(markdown(["r", "accuracy"], [["1", "0.5"]]))
  | r | accuracy |
  | --- | ---: |
  | 1 | 0.5 |
  """
  # No line breaks before a unit or around "±".
  rows = [[re.sub(" (?=%|±)|(?<=±) ", "\N{NO-BREAK SPACE}", cell) for cell in cells] for cells in rows]
  lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
  return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def filled(text, place, content):
  """A page with `content` between <!-- place --> and <!-- end -->. ValueError unless it has exactly one such place."""
  text, count = re.subn(
    f"(?s)<!-- {place} -->((?!<!-- ).)*<!-- end -->", lambda _: f"<!-- {place} -->\n\n{content}\n\n<!-- end -->", text
  )
  if count != 1:
    raise ValueError(f"must have one table between <!-- {place} --> and <!-- end -->, got {count}")
  return text


def _files(path):
  """The existing files of a table, in the order in which they were made."""
  own = re.compile(rf"{re.escape(path.stem)}\.\d+-\d+{re.escape(path.suffix)}")
  return [
    *([path] if path.exists() else []),
    *sorted(file for file in path.parent.glob("*") if own.fullmatch(file.name)),
  ]


def _rows(file):
  content = file.read_bytes()
  lines = csv.reader(io.StringIO(content[: content.rfind(b"\n") + 1].decode(errors="replace"), newline=""))
  rows = []
  try:
    heading = next(lines, [])
    for cells in lines:
      if len(cells) != len(heading):
        raise ValueError(f"there must be {len(heading)} values, as in the heading, got {len(cells)}")
      rows.append({name: cell if name in PROVENANCE else _value(cell) for name, cell in zip(heading, cells)})
  except (csv.Error, ValueError) as error:
    raise ValueError(f"{file}, line {lines.line_num}: {error}. Correct the line.") from None
  return rows


def _value(text):
  for number in (int, float):
    try:
      return number(text)
    except ValueError:
      pass
  return text


def provenance():
  """How the rows of this process are made, as a dict with the keys `PROVENANCE`."""
  by, devices = backend()
  # Only the names of files, without the directories of the person who ran the program.
  arguments = [shlex.quote(pathlib.Path(argument).name if "/" in argument else argument) for argument in sys.argv[1:]]
  main = sys.modules["__main__"]
  file = "/".join(pathlib.Path(getattr(main, "__file__", "")).parts[-2:])
  program = f"python -m {main.__spec__.name}" if main.__spec__ else f"python {file}".rstrip()
  processors = f"{len(os.sched_getaffinity(0))} processors ({machine.processor()})"
  return {
    "command": " ".join([program, *arguments]).replace("\n", " "),
    "commit": commit(),
    "machine": ", ".join([processors, *([] if machine.has_bfloat16() else ["no bfloat16"]), *devices]),
    "refurbish_tf": rtf.__version__,
    "tensorflow": tf.__version__,
    "keras": f"{keras.__version__}{by}",
    "python": platform.python_version(),
  }


def cpu_of_family():
  """CPU seconds of this process and of its children, running or ended."""
  ended = resource.getrusage(resource.RUSAGE_CHILDREN)
  total = time.process_time() + ended.ru_utime + ended.ru_stime
  for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    try:
      fields = path.read_text().rpartition(")")[2].split()
    except OSError:  # The process has ended.
      continue
    if int(fields[1]) == os.getpid():
      total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
  return total


def backend():
  """Keras' backend, such as " on jax 0.1", or "" for TensorFlow, and the names of its accelerators."""
  name = keras.backend.backend()
  if name == "jax":
    import jax

    return f" on jax {jax.__version__}", [device.device_kind for device in jax.devices() if device.platform != "cpu"]
  return "" if name == "tensorflow" else f" on {name}", [
    tf.config.experimental.get_device_details(device).get("device_name", "GPU")
    for device in tf.config.list_physical_devices("GPU")
  ]


def commit(directory=pathlib.Path(__file__).parent.parent):
  """The commit of a directory's checkout, with a plus if its code has changed; "" if there is none.

  A copy that is not a checkout, such as `benchmarks/offline.py` makes, names its commit in the variable `COMMIT`.
  """
  if COMMIT in os.environ:
    return os.environ[COMMIT]

  def git(*arguments):
    return subprocess.run(["git", "-C", str(directory), *arguments], capture_output=True, text=True, check=True).stdout

  try:
    # Fails if git does not track `directory`, such as inside the checkout of another project.
    git("ls-files", "--error-unmatch", ".")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude,glob)**/*.csv")
    return git("rev-parse", "--short", "HEAD").strip() + ("+" if changed else "")
  except (OSError, subprocess.CalledProcessError):
    return ""
