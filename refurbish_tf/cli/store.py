"""The command `refurbish-tf store PATH`: prints the contents of a cache store or shared level, and its running jobs."""

import pathlib
import re
import textwrap

import tensorflow as tf

from refurbish_tf import cache_store
from refurbish_tf._internal import checks, machine, native, shared_levels
from refurbish_tf.cli.startup import stderr_held_back

_PREFIX = "refurbish/[0-9a-f]{20}"


def run(args):
  """Runs the subcommand. Returns its exit status."""
  parser = args.parser
  if not args.path:  # An unset shell variable, for example.
    parser.error("PATH must be the name of a directory, got ''")
  if "://" in args.path:
    return _of_level(args)
  if args.delete:
    parser.error("--delete needs the address of a shared level, such as redis://host:6379/0, instead of a directory")
  try:
    path = pathlib.Path(cache_store.checked_path(args.path, "PATH"))
    # Opening a missing store would make one.
    if not (path / "store").is_file():
      parser.error(f"PATH {args.path!r} is not a cache store: there is no file {str(path / 'store')!r}")
  except OSError as error:
    parser.error(f"PATH {args.path!r} cannot be read: {error.strerror}")
  except ValueError as error:
    parser.error(str(error))
  try:
    with stderr_held_back():
      tf.config.list_logical_devices()
    # `handle` keeps the store open until the end. Mode "inspect" does not change a damaged store, which training would
    # replace by an empty one.
    with checks.build_errors():
      handle = native.ops().refurbish_tf_cache_store_handle(
        store=str(path), max_bytes=cache_store.UNLIMITED, mode="inspect"
      )
    store = cache_store.CacheStore(path)
  except ValueError as error:
    parser.error(str(error))
  settings = store._agree({})
  damaged = _print(store, settings, args.verify)
  del handle
  return 1 if damaged else 0


def _print(store, settings, verify):
  stats = store.stats()
  facts = {
    "samples": f"{stats.entries:,}{_of(settings)}",
    "bytes": (
      f"{machine.size_of(stats.bytes)} live, {machine.size_of(stats.disk_bytes)} on disk in {stats.segments} segments"
    ),
  }
  if stats.ring_bytes:
    facts["bytes"] += f" and a ring of {machine.size_of(stats.ring_bytes)} for samples in transit"
  if stats.entries:
    facts["bytes"] += f"; {machine.size_of(stats.bytes / stats.entries)} per sample"
  names = {"structure": "element_spec" if "element_spec" in settings else "samples"}
  names |= {name: name for name in ("r", "eviction", "seed", "layers", "version")}
  facts |= {name: settings[key] for name, key in names.items() if settings.get(key)}
  facts["jobs"] = "\n".join(_jobs(store, settings)) or "none running"
  damaged = 0
  if verify:
    right, damaged = store.verify()
    facts["verified"] = f"{right:,} intact, {damaged:,} damaged and now missing"
  print(f"cache store {store.path}")
  for name, fact in facts.items():
    lines = [part for line in fact.splitlines() for part in textwrap.wrap(line, 68)]
    print(textwrap.indent("\n".join(lines), " " * 12).replace(" " * 12, f"  {name:10}", 1))
  return damaged


def _jobs(store, settings):
  """A line for each running job: its process, its epoch of the schedule, and how much of it was handed over."""
  total = int(settings.get("num_samples", 0))
  for job in native.rows(native.ops().refurbish_tf_cache_store_jobs(store=store.path)):
    done = f"{job['handed_out'] / total:.0%}".replace("%", " %") if total else f"{job['handed_out']:,} samples"
    yield f"process {job['process']}: epoch {job['epoch']}, {done}"


def _of(settings):
  if "num_samples" not in settings:
    return ""
  kept, total = int(settings.get("num_kept_samples", settings["num_samples"])), int(settings["num_samples"])
  return f" of {total:,}" + (f", of which at most {kept:,} are kept" if kept < total else "")


def _of_level(args):
  """Prints the contents of a shared level, or deletes a prefix of it. Returns the exit status."""
  if args.verify or args.delete and not re.fullmatch(_PREFIX, args.delete):
    wrong = f"--delete must be a prefix that this command has printed, got {args.delete!r}"
    verify = "--verify needs a directory, because jobs check each sample of a shared level themselves"
    args.parser.error(verify if args.verify else wrong)
  try:
    address = shared_levels.address_of(args.path, "PATH")
    told = shared_levels.called(address, lambda level: _told(level, args.delete))
  except ValueError as error:
    args.parser.error(str(error))
  print("\n  ".join([f"shared level {address}", *told]))
  return 0


def _told(level, deleted):
  """A line for each prefix of a shared level, or one for the prefix that was deleted."""
  names, by_prefix, told = level.names(deleted or "refurbish"), {}, []
  if deleted:
    level.delete(list(names))
    return [f"{len(names):,} values deleted"]
  for key, size in names.items():
    if found := re.fullmatch(rf"({_PREFIX})/\d+/\d+", key):
      by_prefix.setdefault(found[1], []).append(size)
  for prefix, sizes in by_prefix.items():
    try:
      about = shared_levels.about(level, prefix)
      version = f"version {about['version']!r}, {about['element_spec']!s:.60}"
    except (KeyError, TypeError, ValueError):
      version = "version unknown"
    told.append(f"{prefix}: {len(sizes):,} samples, {machine.size_of(sum(sizes))}, {version}")
  return told or ["no samples"]
