"""The programs of the guides that run in several processes: killed in the middle of an epoch, they resume there."""

import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from support import ROOT, cases
from support.processes import TIMEOUT, environment, free_port, killed_at_the_end
from test_docs import examples, program_of, write

pytestmark = cases.slow

BEGIN = """
import json, os

def record(*step):
  with open("seen", "a") as file:
    file.write(json.dumps(step) + chr(10))

def may_be_killed(step):
  if step == int(os.environ["KILLED_IN"]):
    os.kill(os.getpid(), 9)

"""
LABELS_OF_JAX = "np.concatenate([each.data for each in labels.addressable_shards]).tolist()"
# What a test cannot wait for, or wants to know. An accuracy of 1 means that each validation image counts once.
SMALLER = {
  "ddp.py": {
    '"/ssd/cache"': '"cache"',
    ".batch(128)": ".batch(4)",
    "epoch, 90)": "epoch, 3)",
    "    optimizer.zero_grad()": "    record(epoch, step, labels.tolist())\n    optimizer.zero_grad()",
    "model(channels_first(images)).argmax(1) == labels": "labels >= 0",
  },
  "train_jax.py": {
    "BATCH = 128": "BATCH = 4",
    "epoch, 90)": "epoch, 3)",
    "    weights = train_step": f"    record(epoch, step, {LABELS_OF_JAX})\n    weights = train_step",
    "logits(weights, images).argmax(1) == labels": "labels >= 0",
  },
  "worker.py": {
    '"/ssd/cache"': '"cache"',
    ".batch(128)": ".batch(5)",
    "epoch < 90": "epoch < 3",
    "    done.assign_add(train_step(*next(iterator, empty)))": (
      "    batch = next(iterator, empty)\n    record(int(epoch), int(step) + 1, batch[1].numpy().tolist())\n"
      "    done.assign_add(train_step(*batch))"
    ),
    "tf.argmax(model(images), 1, tf.int32) == labels": "labels >= 0",
  },
}


@pytest.fixture(autouse=True)
def photographs(tmp_path, monkeypatch):
  """21 images for training and 5 for validation. Each has a class of its own, so that a label names an image."""
  for number, image in enumerate(np.random.default_rng(7).integers(0, 256, [26, 48, 64, 3], np.uint8)):
    write(tmp_path / "photos" / f"{number:02}" / "0.jpg", tf.io.encode_jpeg(image))
  monkeypatch.chdir(tmp_path)


def commands(name, number):
  """The arguments and variables of this number of processes."""
  if name == "ddp.py":
    return [(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number), name], {})]
  ports = [free_port() for _ in range(number)]
  if name == "train_jax.py":
    return (
      [([name, f"localhost:{ports[0]}", str(number), str(i)], {}) for i in range(number)]
      if number > 1
      else [([name], {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"})]
    )
  cluster = {"worker": [f"localhost:{port}" for port in ports]}
  configs = ({"cluster": cluster, "task": {"type": "worker", "index": i}} for i in range(number))
  return [([name], {"TF_CONFIG": json.dumps(config)}) for config in configs]


def run(name, number, killed_in=-1):
  """Returns the steps that were recorded, and the epoch, step and accuracy of each printed line."""
  pathlib.Path("seen").unlink(missing_ok=True)
  with killed_at_the_end() as started:
    for arguments, variables in commands(name, number):
      env = {**environment(), **variables, "KILLED_IN": str(killed_in)}
      output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
      started.append(subprocess.Popen([sys.executable, *arguments], env=env, **output))
    told = [process.communicate(timeout=TIMEOUT)[0] for process in started[: 1 if killed_in >= 0 else None]]
    assert all((process.returncode != 0) == (killed_in >= 0) for process in started[: len(told)]), told
  lines = re.findall(r"^epoch (\d), step (\d+): .*accuracy ([\d.]+)$", told[0], re.MULTILINE)
  seen = [json.loads(line) for line in pathlib.Path("seen").read_text(encoding="utf-8").splitlines()]
  return seen, [(int(epoch), int(step), float(accuracy)) for epoch, step, accuracy in lines]


@pytest.mark.parametrize(
  "page, name, processes, saved_in, killed_in, samples",
  [
    ("torch_jax.md", "ddp.py", (2, 2), 4, 6, 20),
    pytest.param("torch_jax.md", "train_jax.py", (2, 2), 6, 8, 20, marks=cases.only_exhaustive),
    pytest.param("torch_jax.md", "train_jax.py", (1, 1), 6, 8, 20, marks=cases.only_exhaustive),
    # The shards of two workers have 11 and 10 samples, so the first one has a batch more.
    pytest.param("workers.md", "worker.py", (2, 2), 4, 6, 21, marks=cases.only_exhaustive),
    ("workers.md", "worker.py", (2, 3), 4, 6, 21),
  ],
)
def test_killed_programs_resume_in_the_epoch(page, name, processes, saved_in, killed_in, samples):
  """The first process is killed when it has written a checkpoint and not yet renamed it. The next run continues after
  the checkpoint before. In each epoch each sample comes once, over all processes."""
  if name == "worker.py":
    program = next(example for _, example, _ in examples(ROOT / "docs" / page))
  else:
    program = program_of(ROOT / "docs" / page, name)
  renamed = re.search(r" os\.(replace|rename)\(", program)[0]
  for given, run_here in {**SMALLER[name], renamed: f" may_be_killed(step);{renamed}", "% 500": "% 2"}.items():
    assert given in program, given
    program = program.replace(given, run_here)
  pathlib.Path(name).write_text(BEGIN + program, encoding="utf-8")
  first, printed = run(name, processes[0], killed_in)
  assert [(epoch, accuracy) for epoch, _, accuracy in printed] == [(0, 1)]
  resumed, printed = run(name, processes[1])
  assert min(step for _, step, _ in resumed) == saved_in + 1
  seen = [each for each in first if each[1] <= saved_in] + resumed
  for number in range(3):
    labels = [label for epoch, _, labels in seen if epoch == number for label in labels]
    assert len(labels) == len(set(labels)) == samples, seen
  last = {epoch: step for epoch, step, _ in sorted(seen)}
  assert {step for _, step, _ in seen} == set(range(1, last[2] + 1))
  assert printed == [(epoch, last[epoch], 1) for epoch in (1, 2)]
