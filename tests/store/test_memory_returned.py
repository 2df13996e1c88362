"""G8: memory of dropped large samples goes back to the system. Each test runs in a separate process."""

import os
import subprocess
import sys
import textwrap

from support import ROOT, cases
from support import memory as machine_memory


def run_alone(code, before=()):
  environment = {"TF_ENABLE_ONEDNN_OPTS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
  done = subprocess.run(
    [*before, sys.executable, "-c", textwrap.dedent(code)],
    env={**os.environ, **environment},
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )
  assert done.returncode == 0, done.stderr


@cases.only_exhaustive
def test_dropped_memory_is_returned_from_tensorflows_pool(tmp_path):
  """TensorFlow has this pool by default on CPUs for which it uses oneDNN."""
  run_alone(f"""
      import pathlib, pytest
      from support import memory
      with memory.free_memory(pytest.MonkeyPatch, pathlib.Path({str(tmp_path)!r})) as free:
        memory.check_dropped(600_000, lambda short: free.set(2 * memory.GIB - short))""")


@cases.slow
def test_dropped_memory_is_returned_in_a_control_group():
  with machine_memory.control_group() as (group, limit, usage):
    run_alone(
      f"""
        import pathlib
        from support import memory
        make_short = memory.make_short_in(pathlib.Path({str(group)!r}), {limit!r}, {usage!r})
        memory.check_dropped(600_000, make_short, held=700 * memory.MIB)""",
      before=["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")],
    )
