"""Sounds a CPU second with the transforms of trainings/keywords.py, by r, compared with torchaudio in a DataLoader.

Each pipeline runs in its own process, and without a model. The DataLoader needs torchaudio and soundfile.
"""

import common
import numpy as np
import peers
import tensorflow as tf

PIPELINES = {
  **{f"refurbish_r{r}": (f"refurbish, r = {r}", ()) for r in (1, 2, 3)},
  "torch": ("DataLoader, torchaudio", ("torch", "torchaudio", "soundfile")),
}
# Upper limits relative to r = 3.
LIMITS = {"refurbish_r1": 0.556, "torch": 1}


def measure(quick):
  """Yields the section."""
  rng = np.random.default_rng(7)
  waves = (rng.normal(0, 0.1, [size, 1]) for size in rng.integers(13_000, 22_000, 50 if quick else 600))
  files = [tf.audio.encode_wav(wave.astype(np.float32), 22_050).numpy() for wave in waves]
  found, absent = peers.run("sounds", files, common.rounds(quick, peers.ROUNDS), PIPELINES)
  speed = {key: [epoch["count"] / epoch["cpu"] for epoch in of_key] for key, of_key in found.items()}
  name = lambda key: PIPELINES[key][0] + (f": {absent[key]}" if key in absent else "")
  of_r3 = lambda key: common.quotients(speed.get(key, []), speed["refurbish_r3"])
  yield common.Section(
    "Sounds of a second",
    "WAV files of 0.6 to 1 s, from memory: another speed, reverberation, noise, a log-mel spectrogram; then a "
    "shift and two masks. TensorFlow's operations and native layers in refurbish; torchaudio in the DataLoader. CPU "
    "seconds of all processes, epoch by epoch in turns, after the first.",
    [
      *(common.Row(key, name(key), "sounds/CPU s", speed.get(key, [])) for key in PIPELINES),
      *(common.Row(f"{key}_of_r3", name(key), "of r = 3", of_r3(key), limit) for key, limit in LIMITS.items()),
    ],
    lambda row: True,
  )
