// A simulated pipeline: a CPU that makes batches, a stage with room for a few, a prefetch behind it that the tuner
// cannot see, and a device that trains.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "refurbish_tf/cc/schedule/portion_tuner.h"
#include "refurbish_tf/cc/schedule/random.h"

namespace refurbish_tf {
namespace {

constexpr int kNumPortions = static_cast<int>(PortionTuner::kEighths.size());
constexpr int kTuned = -1;
constexpr int kNever = std::numeric_limits<int>::max();

int64_t Nanos(double time) { return static_cast<int64_t>(time * 1e9); }

// Times are in units of what the CPU takes for all of a batch.
struct Pipeline {
  double train = 1;
  double device = 0.1;
  int room = 3;
  int prefetch = 2;
  double noise = 0.1;      // Standard deviation of each time.
  double delay = 0;        // The longest until the batch is asked for; few are that long.
  double warm_up = 1;      // The first 15 batches take the CPU so much longer.
  double fixed = 0.02;     // What the CPU takes for a batch of which the device does all; a change leaves it as it is.
  int change_at = kNever;  // From this batch on the CPU takes `change` times as long.
  double change = 1;
  int pause_every = kNever;  // After so many batches the training pauses so long.
  double pause = 0;
  int burst = 1;       // Of so many batches, the first takes the CPU half as long again, and the others less.
  int execution = 1;   // So many batches are taken at a time.
  int epoch = kNever;  // So many batches have an iterator of their own, and so long lies between two.
  double gap = 0;

  std::string Name() const {
    return "train " + std::to_string(train) + " device " + std::to_string(device) + " room " + std::to_string(room) +
           " prefetch " + std::to_string(prefetch) + " noise " + std::to_string(noise) + " change " +
           std::to_string(change) + " execution " + std::to_string(execution);
  }
};

class Simulation {
 public:
  // Each batch has the portion given, or that of a tuner.
  Simulation(const Pipeline& pipeline, int num_batches, int portion, uint64_t seed)
      : pipeline_(pipeline), random_(DeriveKey(seed, Purpose::kEcho)), batches_(num_batches) {
    for (int out = 0; out < num_batches;) {
      const double begin = NextBegin(out);
      if (begin < NextHandOut(out)) {
        Begin(begin, portion == kTuned ? tuner_.Begin() : portion);
      } else {
        HandOut(out++);
      }
    }
  }

  int portion(int batch) const { return batches_[batch].portion; }

  // Batches the time unit, without the pauses.
  double Throughput(int from, int to) const {
    double time = batches_[to - 1].trained - batches_[from - 1].trained;
    for (int i = from; i < to; ++i) time -= Pause(i);
    return (to - from) / time;
  }

  int Count(int portion, int from, int to) const {
    return static_cast<int>(std::count_if(batches_.begin() + from, batches_.begin() + to,
                                          [&](const Batch& batch) { return batch.portion == portion; }));
  }

 private:
  struct Batch {
    int portion;
    double work, delay, finished, handed_out, taken, trained;
  };

  static double Fraction(int portion) { return PortionTuner::kEighths[portion] / 8.0; }
  double Noisy(double time) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) sum += random_.Below(1 << 20) * 0x1p-20 - 0.5;
    return time * (1 + pipeline_.noise * std::sqrt(3.0) * sum);
  }

  // A thread's until it wakes.
  double Delay() {
    const double part = random_.Below(1 << 20) * 0x1p-20;
    return pipeline_.delay * part * part * part * part;
  }

  double Pause(int batch) const { return (batch + 1) % pipeline_.pause_every == 0 ? pipeline_.pause : 0; }

  // Of an iterator.
  bool IsFirst(int batch) const { return batch % pipeline_.epoch == 0; }

  // When training would take it, if it were there.
  double TakenAtOnce(int batch) const {
    if (batch == 0) return 0;
    return batch % pipeline_.execution == 0 ? batches_[batch - 1].trained : batches_[batch - 1].taken;
  }

  double NextBegin(int out) const {
    if (begun_ == static_cast<int>(batches_.size()) || begun_ - out >= pipeline_.room) return kInfinity;
    if (IsFirst(begun_)) {
      if (out < begun_) return kInfinity;
      return begun_ == 0 ? 0 : batches_[begun_ - 1].trained + pipeline_.gap;
    }
    const double room = begun_ < pipeline_.room ? 0 : batches_[begun_ - pipeline_.room].handed_out;
    return std::max(batches_[begun_ - 1].finished, room);
  }

  double Asked(int batch) const { return AskedAtOnce(batch) + batches_[batch].delay; }

  double AskedAtOnce(int batch) const {
    if (IsFirst(batch)) return 0;
    if (pipeline_.prefetch == 0) return TakenAtOnce(batch);
    const double taken = batch < pipeline_.prefetch ? 0 : batches_[batch - pipeline_.prefetch].taken;
    return std::max(batches_[batch - 1].handed_out, taken);
  }

  double NextHandOut(int batch) const {
    return batch < begun_ ? std::max(batches_[batch].finished, Asked(batch)) : kInfinity;
  }

  void Begin(double now, int portion) {
    double time = (1 - Fraction(portion));
    if (pipeline_.burst > 1) time *= begun_ % pipeline_.burst == 0 ? 1.5 : 1 - 0.5 / (pipeline_.burst - 1);
    if (begun_ < 15) time *= pipeline_.warm_up;
    if (begun_ >= pipeline_.change_at) time *= pipeline_.change;
    time += pipeline_.fixed;
    const double work = Noisy(time);
    batches_[begun_++] = {portion, work, Delay(), now + work, 0, 0, 0};
  }

  void HandOut(int number) {
    Batch& batch = batches_[number];
    const double asked = Asked(number);
    batch.handed_out = std::max(batch.finished, asked);
    std::optional<int64_t> since;
    if (!IsFirst(number)) since = Nanos(batch.handed_out) - Nanos(batches_[number - 1].handed_out);
    tuner_.Record({batch.portion, since, Nanos(batch.work)});
    batch.taken = std::max(batch.handed_out, TakenAtOnce(number));
    batch.trained = std::max(batch.taken, number == 0 ? 0 : batches_[number - 1].trained) +
                    Noisy(pipeline_.train + Fraction(batch.portion) * pipeline_.device) + Pause(number);
  }

  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Pipeline pipeline_;
  PortionTuner tuner_;
  RandomStream random_;
  std::vector<Batch> batches_;
  int begun_ = 0;
};

struct Ratios {
  double to_best;     // Of the five portions.
  double to_extreme;  // The better of all on the CPU and all on the device.
};

// Medians of five runs.
Ratios Compare(const Pipeline& pipeline, int from, int to) {
  std::array<double, 5> to_best, to_extreme;
  for (int seed = 0; seed < 5; ++seed) {
    std::array<double, kNumPortions> fixed;
    for (int portion = 0; portion < kNumPortions; ++portion) {
      fixed[portion] = Simulation(pipeline, to, portion, seed).Throughput(from, to);
    }
    const double tuned = Simulation(pipeline, to, kTuned, seed).Throughput(from, to);
    to_best[seed] = tuned / *std::max_element(fixed.begin(), fixed.end());
    to_extreme[seed] = tuned / std::max(fixed.front(), fixed.back());
  }
  std::sort(to_best.begin(), to_best.end());
  std::sort(to_extreme.begin(), to_extreme.end());
  return {to_best[2], to_extreme[2]};
}

// One of so many cases, or all in the exhaustive run. Each value of each loop is among them if the number has no
// divisor in common with the numbers of values.
class OneOf {
 public:
  explicit OneOf(int one_of) : one_of_(std::getenv("REFURBISH_TF_ROUNDS") == nullptr ? one_of : 1) {}
  bool operator()() { return seen_++ % one_of_ == 0; }

 private:
  const int one_of_;
  int seen_ = 0;
};

std::vector<Pipeline> Pipelines() {
  std::vector<Pipeline> pipelines;
  for (const double train : {0.1, 0.35, 0.8, 1.2, 2.0}) {
    for (const double device : {0.001, 0.1, 0.4, 1.0}) {
      for (const auto& [room, prefetch] : {std::array{2, 0}, std::array{3, 1}, std::array{3, 4}, std::array{4, 16}}) {
        Pipeline pipeline;
        pipeline.train = train;
        pipeline.device = device;
        pipeline.room = room;
        pipeline.prefetch = prefetch;
        pipelines.push_back(pipeline);
      }
    }
  }
  return pipelines;
}

}  // namespace
}  // namespace refurbish_tf
