"""The keywords: held-out voices, what is trained, a plan that was stopped, and the table."""

import keywords
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf.experiments import results, tables, turns
from support import cases


def test_a_stopped_plan_continues_with_the_missing_trainings(tmp_path, monkeypatch, capsys):
  trained, voices = [], []

  def stopped(_, row, folder):
    if len(trained) == 4:
      raise KeyboardInterrupt
    trained.append((row["seed"], row["strategy"]))
    return {"steps": 1, "parameters": 1, "accuracies": "0.1 0.9", **dict.fromkeys(turns.COLUMNS[2:], "2.0 2.0")}

  monkeypatch.setattr(turns, "in_own_process", stopped)
  monkeypatch.setattr(keywords, "speak", lambda folder, count, of, seed: voices.append(set(of)))
  monkeypatch.setattr(keywords.shutil, "which", lambda name: name)
  arguments = [str(tmp_path), "--seed", "0", "1"]
  with pytest.raises(KeyboardInterrupt):
    keywords.main(arguments)
  there = [trained.pop() for _ in range(4)]
  keywords.main(arguments)
  assert sorted(there + trained) == sorted((seed, each) for seed in range(2) for each in keywords.STRATEGIES)
  assert len(results.read(tmp_path / "keywords.csv")) == 6 and "refurbish, r = 3 | 2.0" in capsys.readouterr().out
  assert voices[0] and voices[1] and not voices[0] & voices[1]  # No voice is both trained on and held out.


@cases.slow
def test_a_training(tmp_path):
  for number in range(40):  # Tones in place of words.
    path = tmp_path / ("train", "validation")[number % 2] / keywords.WORDS[number // 2] / "0.wav"
    path.parent.mkdir(parents=True)
    wave = np.sin(np.arange(9_000 + 99 * number) * 0.1)[:, None].astype(np.float32)
    path.write_bytes(tf.audio.encode_wav(wave, keywords.SPOKEN_RATE).numpy())
  made = [keywords.prepare(path.read_bytes(), 3, seed=tf.constant(seed))[0] for seed in ([1, 0], [1, 0], [2, 0])]
  assert made[0].shape == [98, keywords.BANDS] and np.isfinite(made[0]).all()
  assert np.array_equal(made[0], made[1]) and np.abs(made[0] - made[2]).mean() > 0.1
  row = {"strategy": "refurbish r=2", "seed": 0, "sounds": 20, "batch_size": 10, "epochs": 2, "learning_rate": 0.01}
  columns = keywords.train(row, tmp_path)
  assert columns["steps"] == 4 and all(len(columns[name].split()) == 2 for name in keywords.COLUMNS[2:])


def test_table():
  """Until the target, and paired by seed: the speedup has no spread, although seeds differ. The pilot is left out."""
  rows = [
    {
      "strategy": name,
      "seed": seed,
      "target": 0.7,
      "accuracies": "0.1 0.8 0.9" if seed != 4 or r > 1 else "0.1 0.2 0.3",
    }
    | dict.fromkeys(turns.COLUMNS[2:], f"{(1 + seed) / r} {(1 + seed) / r} 9")
    for r, name in enumerate(keywords.STRATEGIES, 1)
    for seed in (*keywords.SEEDS, keywords.PILOT_SEED)
  ]
  first, _, last = tables.keywords(rows).replace("\N{NO-BREAK SPACE}", " ").splitlines()[2:]
  assert first.startswith("| standard | 2.0 ± 0.0 (1 missed it) | 5.0 ± ")
  assert "| 3.00 (3.00 to 3.00) | 3.00 (3.00 to 3.00) | 90.0 ± 0.0 % |" in last
