"""Seconds until a small network knows keywords by voices that it has not heard: standard training against reuse.

    PYTHONPATH=. python trainings/keywords.py OUT_DIR

The synthesizer espeak-ng (Debian: `apt-get install espeak-ng`) speaks the twenty core words of Speech Commands
(Warden, 2018), and the program stores them as WAV files. A quarter of its voices is only for the validation. Speed,
room, noise and the log-mel spectrogram are the partial augmentation; a shift in time and SpecAugment are the final one.
The clock pauses while the network is validated. The strategies take turns, each training in a process of its own. The
program adds a row to OUT_DIR/keywords.csv for each training, and continues where it was stopped.
"""

import argparse
import concurrent.futures
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

import refurbish_tf as rtf
from refurbish_tf import augment
from refurbish_tf.experiments import results, tables, training, turns

STRATEGIES, SEEDS, PILOT_SEED = ("standard", "refurbish r=2", "refurbish r=3"), tables.SEEDS_OF_KEYWORDS, 100
WORDS = "yes no up down left right on off stop go zero one two three four five six seven eight nine".split()
ACCENTS = "en-us en-gb en-gb-scotland en-gb-x-rp en-gb-x-gbclan en-gb-x-gbcwmd en-029".split()
# The voices of espeak-ng without whispers and robots.
VOICES = (
  "Alex Alicia Andrea Andy Annie Denis Diogo Gene Gene2 Henrique Hugo Jacky Lee Marco Mario Michael Mike Nguyen "
  "RicishayMax Storm adam announcer antonio aunty belinda benjamin boris caleb david ed edward f1 f2 f3 f4 f5 grandma "
  "grandpa gustave iven john kaukovalta klatt linda m1 m2 m3 m4 m5 m6 m7 m8 marcelo max michel miguel norbert pablo "
  "paul pedro quincy rob robert sandro shelby steph travis victor zac"
).split()
# Samples a second of espeak-ng and of the network's input, of which a sound has one second; points of the FFTs.
SPOKEN_RATE, RATE, POINTS = 22_050, 16_000, 32_768
BANDS, WIDTH = 64, 24
MEL = tf.signal.linear_to_mel_weight_matrix(BANDS, 257, RATE, 60, 7_600)
SOUNDS, BATCH_SIZE, EPOCHS, LEARNING_RATE, WARM_UP, WEIGHT_DECAY = 1_200, 25, 18, 0.006, 0.05, 1e-4
# The multiple of 5 points below the accuracy of the pilot, standard training with seed 100, after half of its epochs.
TARGET = 0.7
KEY = ("dataset", "sounds", "batch_size", "epochs", "learning_rate", "target", "strategy", "seed")
COLUMNS = (*turns.COLUMNS, "accuracies")


def speak(folder, count, voices, seed):
  """Writes `count` spoken words as WAV files, each in the folder of its word, unless `folder` exists."""
  if folder.exists():
    return

  def write(number):
    rng = np.random.default_rng([seed, number])
    word, voice = WORDS[number % len(WORDS)], f"{rng.choice(ACCENTS)}+{rng.choice(voices)}"
    (new / word).mkdir(exist_ok=True)
    speed, pitch, file = str(rng.integers(130, 220)), str(rng.integers(20, 80)), str(new / word / f"{number}.wav")
    subprocess.run(["espeak-ng", "-v", voice, "-s", speed, "-p", pitch, "-w", file, word], check=True)

  with turns.new_folder(folder) as new, concurrent.futures.ThreadPoolExecutor() as pool:
    list(pool.map(write, range(count)))


def fitted(values, length):
  """The first `length` values, and zeros if there are fewer."""
  return tf.pad(values[:length], [[0, length - tf.minimum(length, tf.size(values))]])


def prepare(sound, label, *, seed):
  """The partial augmentation: the log-mel spectrogram `[98, BANDS]` of a second, faster or slower, in a noisy room."""
  wave = tf.audio.decode_wav(sound, 1)[0][:, 0]
  speed, reverberation, echoes, colour, loudness = tf.unstack(tf.random.stateless_uniform([5], seed))
  # Both resampled and played at another speed, in steps that the FFT is fast for.
  samples = 128 * tf.cast(POINTS / 128 * RATE / SPOKEN_RATE * (0.85 + 0.3 * speed), tf.int32)
  spectrum = fitted(tf.signal.rfft(fitted(wave, POINTS)), samples // 2 + 1)
  wave = tf.signal.irfft(spectrum, [samples])
  # Echoes are noise that falls by 60 dB in 0.1 to 0.6 s.
  time = tf.range(RATE, dtype=tf.float32) / RATE
  fall = tf.exp(-6.9 * time / (0.1 + 0.5 * reverberation)) * (0.02 + 0.1 * echoes)
  room = tf.where(time == 0, 1.0, fall * tf.random.stateless_normal([RATE], augment.seed_at(seed, 1)))
  wave = tf.signal.irfft(tf.signal.rfft(fitted(wave[:RATE], POINTS)) * tf.signal.rfft(fitted(room, POINTS)))[:RATE]
  # From white to red noise, 5 to 25 dB below the sound.
  white = tf.signal.rfft(tf.random.stateless_normal([RATE], augment.seed_at(seed, 2)))
  noise = tf.signal.irfft(white * tf.cast(tf.range(1, RATE // 2 + 2, dtype=tf.float32) ** -colour, tf.complex64))
  wave = tf.math.l2_normalize(wave) + tf.math.l2_normalize(noise) * 10 ** -(0.25 + loudness)
  power = tf.abs(tf.signal.stft(12 * wave, 400, 160, 512)) ** 2
  return tf.math.log(power @ MEL + 1e-5), label


def final_layers():
  return [augment.time_shift(-0.1, 0.1), augment.time_mask(20), augment.frequency_mask(10)]


def network():
  """A plain network of five convolutions."""

  def active(x, filters, strides=1):
    x = keras.layers.Conv2D(filters, 3, strides, "same", use_bias=False, kernel_initializer="he_normal")(x)
    return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))

  inputs = keras.Input([98, BANDS])
  x = active(keras.layers.Reshape([98, BANDS, 1])(keras.layers.Rescaling(1 / 4, offset=0.5)(inputs)), WIDTH // 2, 2)
  for filters in (WIDTH, 2 * WIDTH):
    x = active(active(x, filters, 2), filters)
  return keras.Model(inputs, keras.layers.Dense(len(WORDS))(keras.layers.GlobalAveragePooling2D()(x)))


def train(row, folder):
  """Trains once. Returns the remaining columns of the row."""
  keras.utils.set_random_seed(row["seed"])
  sounds, held_out = (rtf.sources.audio_folder(folder / name, class_names=WORDS) for name in ("train", "validation"))
  # The sounds of the validation are prepared once, the same for all trainings.
  held_out = held_out.refurbish(prepare, r=1, seed=0).batch(100).cache()
  r = 1 if row["strategy"] == "standard" else int(row["strategy"].split("r=")[1])
  model, steps = network(), row["epochs"] * (row["sounds"] // row["batch_size"])
  model.compile(
    keras.optimizers.AdamW(training.cosine(row["learning_rate"], steps, WARM_UP), WEIGHT_DECAY),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
    jit_compile=training.jit_compile(),
  )

  def batches():
    stage = sounds.refurbish(prepare, final_layers(), r=r, seed=row["seed"])
    made = stage.batch(row["batch_size"], drop_remainder=True).prefetch(2)
    return lambda _: made

  accuracy = lambda: model.evaluate(held_out, verbose=0)[1]
  return turns.by_epoch(model, "accuracies", turns.timed_epochs(model, batches, accuracy, row["epochs"]))


def main(argv=None):
  """Adds the trainings that the table lacks, and prints the results."""
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
  )
  parser.add_argument(
    "folder", type=pathlib.Path, metavar="OUT_DIR", help="for the table, keywords.csv, and the sounds"
  )
  parser.add_argument("--strategy", choices=STRATEGIES, nargs="+", default=STRATEGIES, help="train only with these")
  parser.add_argument("--seed", type=int, nargs="+", default=SEEDS, help=f"{PILOT_SEED} is the pilot")
  parser.add_argument("--epochs", type=int, default=EPOCHS, help="of each training")
  parser.add_argument("--sounds", type=int, default=SOUNDS, help="to train on; a third as many to validate on")
  args = parser.parse_args(argv)
  if not shutil.which("espeak-ng"):
    parser.error("it needs espeak-ng, which is not installed. On Debian: apt-get install espeak-ng.")
  table = results.Table(args.folder / "keywords.csv", KEY, COLUMNS)
  folder = args.folder / f"speech-{args.sounds}"
  speak(folder / "train", args.sounds, [voice for voice in VOICES if voice not in VOICES[::4]], 0)
  speak(folder / "validation", args.sounds // 3, VOICES[::4], 1)
  values = ("espeak-ng", args.sounds, BATCH_SIZE, args.epochs, LEARNING_RATE, TARGET)
  row_of = lambda strategy, seed: dict(zip(KEY, (*values, strategy, seed)))
  turns.complete(table, args.strategy, args.seed, row_of, lambda row: turns.in_own_process(train, row, folder))
  print(tables.keywords(results.read(table.path)))


if __name__ == "__main__":
  sys.exit(main())
