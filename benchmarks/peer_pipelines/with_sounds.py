"""The pipeline of trainings/keywords.py: with `refurbish`, or with torchaudio in PyTorch's DataLoader.

The third argument says which: "refurbish_r1" to "refurbish_r3", or "torch".
"""

import io
import itertools
import pathlib
import sys

import epochs

ENDLESS, BATCHES_AHEAD = 10**9, 2
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "trainings"))


def in_refurbish(files):
  import keywords
  import tensorflow as tf

  from refurbish_tf._internal import dataset_graph

  stage = tf.data.Dataset.from_tensor_slices((files, [0] * len(files))).refurbish(
    keywords.prepare, keywords.final_layers(), r=int(sys.argv[3][-1]), seed=7
  )
  batches = stage.batch(epochs.BATCH).repeat(ENDLESS).prefetch(BATCHES_AHEAD)
  iterator = iter(dataset_graph.without_autotuner(batches).map(lambda sounds, _: sounds))
  return lambda: itertools.islice(iterator, len(files) // epochs.BATCH)


def in_torch(files):
  import soundfile
  import torch
  from torchaudio import functional, transforms
  import with_torch

  points, spoken_rate, rate, bands = 32_768, 22_050, 16_000, 64
  mel = transforms.MelSpectrogram(rate, 512, 400, 160, f_min=60, f_max=7_600, n_mels=bands, center=False)
  masks = torch.nn.Sequential(transforms.FrequencyMasking(10), transforms.TimeMasking(20))
  time = torch.arange(rate) / rate

  class Sounds(torch.utils.data.Dataset):
    def __len__(self):
      return len(files)

    def __getitem__(self, place):
      wave = torch.from_numpy(soundfile.read(io.BytesIO(files[place]), dtype="float32")[0])
      speed, reverberation, echoes, colour, loudness, shift = torch.rand(6).tolist()
      samples = 128 * int(points / 128 * rate / spoken_rate * (0.85 + 0.3 * speed))
      wave = torch.fft.irfft(torch.fft.rfft(wave, points)[: samples // 2 + 1], samples)[:rate]
      room = torch.randn(rate) * torch.exp(-6.9 * time / (0.1 + 0.5 * reverberation)) * (0.02 + 0.1 * echoes)
      room[0] = 1
      # The FFTs of torchaudio's fftconvolve would have a length that is slow.
      wave = torch.fft.irfft(torch.fft.rfft(wave, points) * torch.fft.rfft(room, points))[:rate]
      white = torch.fft.rfft(torch.randn(rate))
      noise = torch.fft.irfft(white * torch.arange(1, rate // 2 + 2) ** -colour)
      wave = functional.add_noise(wave, noise, torch.tensor(5 + 20 * loudness))
      wave *= 12 / wave.norm()
      found = torch.log(mel(wave) + 1e-5)
      return masks(found.roll(int((shift - 0.5) / 5 * found.shape[1]), 1)[None])[0]

  return with_torch.epochs_of(Sounds())


if __name__ == "__main__":
  epochs.serve(sounds=in_torch if sys.argv[3] == "torch" else in_refurbish)
