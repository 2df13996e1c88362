"""What finishing costs on a GPU, for `fuse`: compiled for one that is not there, and measured on one that is.

    KERAS_BACKEND=jax JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 python benchmarks/fuse_device.py SIDE BATCH

counts what the compiled program does, and prints it as JSON. It needs `pip install 'jax[cuda12]'`, and no GPU.
"""
import json
import math
import os
import re
import subprocess
import sys
import time

import numpy as np

# What is counted: its name in the JSON, its name elsewhere, its unit.
COUNTED = (("launches", "launches", "a batch"), ("moved", "moved", "kB an image"), ("memory", "working memory", "kB an image"),
           ("time", "time, by what is moved", "µs an image"))
BYTES_A_SECOND = 3.35e12
H100 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800
clock_rate_ghz: 1.98 device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
cuda_compute_capability { major: 9 } registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
platform_name: "CUDA" dnn_version_info { major: 9 minor: 7 } runtime_version { major: 12 minor: 8 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3" """
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8}
# Instructions that are none when the program runs.
NOT_RUN = ("parameter", "constant", "bitcast", "get-tuple-element", "tuple")
# Those that run other blocks of them.
CALLS = ("while", "conditional", "call")


def compiled(side, batch):
  """The counts, of a process of its own with JAX' backend of Keras."""
  environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "JAX_PLATFORMS": "cpu"}
  done = subprocess.run([sys.executable, __file__, str(side), str(batch)], env=environment, capture_output=True, text=True,
                        check=False)
  if done.returncode:
    raise RuntimeError(done.stderr)
  return json.loads(done.stdout.splitlines()[-1])


def _count(side, batch):
  # Here, as the backend of Keras is chosen when it is imported.
  import fuse
  import jax
  from jax.experimental import topologies
  import refurbish_tf as rtf
  from refurbish_tf.augment import on_device
  layers = fuse.layers(2)
  wanted = on_device.DeviceLayers.of(layers, "fuse")
  device = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1").devices[0]
  placed = jax.sharding.SingleDeviceSharding(device)
  inputs = {
      name: jax.ShapeDtypeStruct((batch, *shape), dtype, sharding=placed)
      for name, shape, dtype in (("unfinished_image", (side, 3 * side), np.uint8), ("draws", (1 + wanted.num_draws,), np.int32),
                                 ("layers", (0, wanted.fingerprint), np.int32))}
  program = jax.jit(rtf.keras.Finish(layers).call).lower(inputs).compile()
  launches, moved = _launches(program.as_text())
  return {"launches": launches, "moved": moved / batch / 1e3,
          "memory": program.memory_analysis().temp_size_in_bytes / batch / 1e3,
          "time": 1e6 * moved / batch / BYTES_A_SECOND}


def _launches(text):
  """How many instructions of a compiled program run, and the bytes of their operands and results.

  Those of a loop once, and of a switch those of its longest branch, which finishes all images.
  """
  blocks = dict(re.findall(r"^(?:ENTRY )?%([\w.\-]+) [^\n]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL))

  def run(name):
    launches = moved = 0
    types = {}
    for line in blocks[name].splitlines():
      found = re.match(r"\s*(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*?)\)", line)
      if not found:
        continue
      result, kind, operation, operands = found.groups()
      types[result] = kind
      if operation in CALLS:
        called = [run(block) for block in re.findall(r"%([\w.\-]+)", line[found.end():]) if block in blocks]
        counts = [max(called)] if operation == "conditional" else called
        launches += sum(count[0] for count in counts)
        moved += sum(count[1] for count in counts)
      elif operation not in NOT_RUN:
        launches += 1
        moved += _bytes(kind) + sum(_bytes(types.get(each, "")) for each in re.findall(r"%([\w.\-]+)", operands))
    return launches, moved

  return run(re.search(r"^ENTRY %([\w.\-]+)", text, re.MULTILINE)[1])


def _bytes(kind):
  return sum(WIDTHS.get(name, 4) * math.prod(int(size) for size in sizes.split(",") if size)
             for name, sizes in re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", kind))


def section(quick, layers):
  """Measured on the GPU of this machine, beside Keras' layer and DALI."""
  import common
  import fuse
  import keras
  import tensorflow as tf
  import refurbish_tf as rtf
  if not tf.config.list_physical_devices("GPU"):
    sys.exit("fuse --device gpu: TensorFlow finds no GPU here. Leave --device out to simulate one.")
  side, batch, rounds = fuse.SIDE, 128, common.rounds(quick, 5)
  images = np.random.default_rng(7).integers(0, 256, [batch, side, side, 3], np.uint8)
  finish = rtf.keras.Finish(layers)
  calls = {}
  for share in (0, 1 / 8, 1 / 2, 1):
    dataset = tf.data.Dataset.from_tensor_slices(images).fuse(layers, batch, on_device=share, seed=7)
    calls[f"Finish, share {share:g}"] = finish, next(iter(dataset))
  policies = [keras.layers.RandAugment((0, 255), 2, fuse.MAGNITUDE / 10)]
  calls["Keras' RandAugment, one draw a batch"] = policies[0], tf.constant(images, tf.float32)
  rows = []
  for name, (function, given) in calls.items():
    with tf.device("/GPU:0"):
      given = tf.nest.map_structure(tf.identity, given)
      step = tf.function(lambda given, function=function: tf.reduce_sum(tf.cast(function(given), tf.float32)),
                         jit_compile=function is finish)
      seconds = _timed(lambda step=step, given=given: step(given).numpy(), rounds)
    rows.append(common.Row(f"gpu_{''.join(c if c.isalnum() else '_' for c in name)}", name, "µs an image",
                           [1e6 * each / batch for each in seconds]))
  dali = _dali(images)
  rows.append(common.Row("gpu_dali", f"DALI's rand_augment{'' if dali else ': not installed'}", "µs an image",
                         [1e6 * each / batch for each in _timed(dali, rounds)] if dali else []))
  return common.Section(
      section.__doc__, f"Batches of {batch} images of {side}x{side} that lie on the GPU, by the clock, with the launches and a "
      "sum that waits for the result. DALI's are copied there first. Finish also crops, flips and normalises.", rows)


def _timed(call, rounds):
  """Seconds a call."""
  took = []
  for _ in range(1 + rounds):
    began = time.perf_counter()
    for _ in range(20):
      call()
    took.append((time.perf_counter() - began) / 20)
  return took[1:]


def _dali(images):
  try:
    from nvidia.dali import fn, pipeline_def
    from nvidia.dali.auto_aug import rand_augment
  except ImportError:
    return None

  @pipeline_def(enable_conditionals=True)
  def pipeline():
    given = fn.external_source(source=lambda: images, batch=True, layout="HWC", no_copy=True)
    return rand_augment.rand_augment(given.gpu(), n=2, m=9, shape=images.shape[1:3], fill_value=0)

  built = pipeline(batch_size=len(images), num_threads=2, device_id=0, prefetch_queue_depth=1, exec_pipelined=False,
                   exec_async=False)
  built.build()
  return lambda: [output.as_cpu() for output in built.run()]


if __name__ == "__main__":
  print(json.dumps(_count(*map(int, sys.argv[1:]))))
