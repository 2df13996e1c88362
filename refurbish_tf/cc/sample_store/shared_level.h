// A second level of a store, which machines share: the latest generation of
// each sample, in a server or a file system that clients in Python access.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "refurbish_tf/cc/sample_store/sample_codec.h"
#include "refurbish_tf/cc/sample_store/sample_store.h"

extern "C" {
// What Python's clients are asked for. `shared_levels.py` has the same struct.
struct RefurbishTfAsked {
  uint64_t reader;
  uint32_t index;
  uint32_t least;  // The least generation that can be used.
};
}

namespace refurbish_tf {

// Two queues between the stages and the threads in Python: samples asked for
// before they are needed, and samples to write. A stage never waits. What has
// not come when it is needed is prepared, and what cannot be written is
// dropped. After a fork the child's level does nothing, because it has no
// threads.
//
// Thread-safe. No other lock is taken while `mu_` is held.
class SharedLevel {
 public:
  // `id`: the address, a newline, and the prefix of all keys. The prefix stands
  // for all that determines the samples. Python gets a new level's name: the id
  // and the limit.
  static std::shared_ptr<SharedLevel> GetOrCreate(const std::string& id,
                                                  int64_t max_bytes,
                                                  const SampleTypes& types);
  SharedLevel(const std::string& id, int64_t max_bytes,
              const SampleTypes& types);

  // An epoch that reads samples. Numbered, so that what comes after its end is
  // not given to another one. Must not outlive the level.
  class Reader {
   public:
    Reader(SharedLevel* level, uint64_t num_samples);
    ~Reader();
    uint64_t number() const { return number_; }

    // Asks for a sample of at least a generation.
    void Ask(uint32_t index, Generation least);
    // Moves a sample out that has come in a wanted generation. False if it has
    // not. If `last`, it is not waited for any longer.
    bool Take(uint32_t index, GenerationRange wanted, bool last, Sample* sample,
              Generation* found);
    // A sample is no longer needed, because it was found elsewhere.
    void Forget(uint32_t index) {
      Sample sample;
      Generation found;
      Take(index, /*wanted=*/{1, 0}, /*last=*/true, &sample, &found);
    }

   private:
    SharedLevel& level_;
    const uint64_t number_;
  };

  // Queues a sample to be written.
  void Put(uint32_t index, Generation generation, const Sample& sample)
      ABSL_LOCKS_EXCLUDED(mu_);

  // A record that is written: a header as on disk, and the encoded sample.
  struct Record {
    Sample sample;
    RecordHeader header;
    EncodedSample encoded;
    int64_t bytes;  // About how many it takes.
  };

  // For the threads in Python, which call these by the functions of the same
  // names in `shared_level.cc`.

  using Millis = std::chrono::milliseconds;
  int NextAsked(Millis wait, int most, RefurbishTfAsked* asked)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Answered(Millis again, int count, const RefurbishTfAsked* asked)
      ABSL_LOCKS_EXCLUDED(mu_);
  int Found(uint64_t reader, uint32_t index, const char* data, uint64_t size)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null if there is nothing to write.
  std::unique_ptr<Record> NextPut(Millis wait, bool* kept)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Clock = std::chrono::system_clock;
  struct Request {
    std::pair<uint64_t, uint32_t> of;  // Reader and index.
    Generation least;
    // When to ask the next time; in the far future while a client reads it.
    Clock::time_point again = {};
    bool has_come = false;
    Generation generation = 0;
    Sample sample = {};
    int64_t bytes = 0;
  };
  bool IsForked() const;
  void Forget(std::list<Request>::iterator request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a sample is in the fixed set that a limited level keeps. It depends
  // on nothing but the limit, the number of samples and their mean size, so all
  // jobs keep the same ones.
  bool IsKept(uint32_t index) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const pid_t process_;
  const uint64_t record_id_;  // In all record headers; made from the prefix.
  const int64_t max_bytes_, max_waiting_;
  const SampleTypes types_;
  std::mutex mu_;
  std::condition_variable asked_, put_;
  // By when they are needed.
  std::list<Request> requests_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<uint64_t, uint32_t>, std::list<Request>::iterator>
      by_index_ ABSL_GUARDED_BY(mu_);
  std::deque<std::unique_ptr<Record>> puts_ ABSL_GUARDED_BY(mu_);
  // The bytes of `puts_` and of the requests that have come, and the largest
  // sample seen.
  int64_t bytes_to_put_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t bytes_come_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t largest_ ABSL_GUARDED_BY(mu_) = 0;
  // For `IsKept`: how many samples there are, and the sum of the bytes of those
  // put and their number.
  uint64_t num_samples_ ABSL_GUARDED_BY(mu_) = 0;
  double all_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t num_put_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace refurbish_tf
