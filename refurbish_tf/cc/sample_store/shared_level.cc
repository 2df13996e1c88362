#include "refurbish_tf/cc/sample_store/shared_level.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/base/crc32c.h"
#include "refurbish_tf/cc/base/memory.h"
#include "refurbish_tf/cc/base/registry.h"
#include "refurbish_tf/cc/plan/random.h"
#include "refurbish_tf/cc/store/record.h"

namespace refurbish_tf {
namespace {

// The most bytes of samples that have come or are on their way, and of those to
// be written, also as a part of the memory. Much: others are prepared again.
constexpr int64_t kMostWaiting = 128 << 20, kPartWaiting = 32;
constexpr int64_t kMostAtOnce = 8 << 20;  // About what a client reads at once.
// How many samples may be asked for at once. Of those that were not found, only
// those needed next are asked for again: others may be there by their turn.
constexpr size_t kMostRequests = 4096, kMostRepeated = 32;
// How long a thread waits for more requests or puts, so that it gets several at
// once: in Python each call costs as much as many samples.
constexpr std::chrono::milliseconds kTogether(5);
// What a server adds to each record, roughly.
constexpr int64_t kBytesBesideRecord = 160;

using ServeLevel = void (*)(const char* level);
std::atomic<ServeLevel> serve_level{nullptr};
std::atomic<uint64_t> num_readers{0};  // Of all levels that ever were.

uint64_t HashOf(const std::string& text) {
  uint64_t hash = text.size();
  for (const unsigned char letter : text) hash = Mix(hash ^ letter);
  return hash;
}

}  // namespace

std::shared_ptr<SharedLevel> SharedLevel::GetOrCreate(
    const std::string& id, int64_t max_bytes, const SampleTypes& types) {
  bool created = false;
  const std::string name = absl::StrCat(id, "\n", max_bytes);
  std::shared_ptr<SharedLevel> level =
      Registry<SharedLevel>::Global().GetOrCreate(name, [&] {
        created = true;
        return std::make_shared<SharedLevel>(id, max_bytes, types);
      });
  const ServeLevel serve = serve_level;
  if (created && serve != nullptr) serve(name.c_str());
  return level;
}

SharedLevel::SharedLevel(const std::string& id, int64_t max_bytes,
                         const SampleTypes& types)
    : process_(getpid()),
      record_id_(HashOf(id.substr(id.find('\n') + 1))),
      max_bytes_(max_bytes),
      max_waiting_(std::min(kMostWaiting, ReadMemory().limit / kPartWaiting)),
      types_(types),
      largest_(std::max<int64_t>(FixedEncodedBytes(types), 0)) {}

bool SharedLevel::IsForked() const { return getpid() != process_; }

SharedLevel::Reader::Reader(SharedLevel* level, uint64_t num_samples)
    : level_(*level), number_([&] {
        // The number of a child's reader is never used.
        if (level->IsForked()) return uint64_t{0};
        std::lock_guard<std::mutex> lock(level->mu_);
        level->num_samples_ = std::max(level->num_samples_, num_samples);
        return ++num_readers;
      }()) {}

SharedLevel::Reader::~Reader() {
  if (level_.IsForked()) return;
  std::lock_guard<std::mutex> lock(level_.mu_);
  for (auto next = level_.requests_.begin(); next != level_.requests_.end();) {
    const auto request = next++;
    if (request->of.first == number_) level_.Forget(request);
  }
}

void SharedLevel::Reader::Ask(uint32_t index, Generation least) {
  if (level_.IsForked()) return;
  std::lock_guard<std::mutex> lock(level_.mu_);
  auto [entry, added] = level_.by_index_.try_emplace({number_, index});
  if (!added) return;
  level_.asked_.notify_one();
  entry->second = level_.requests_.insert(level_.requests_.end(),
                                          {{number_, index}, least});
  if (level_.requests_.size() > kMostRequests) {
    level_.Forget(level_.requests_.begin());
  }
}

bool SharedLevel::Reader::Take(uint32_t index, GenerationRange wanted,
                               bool last, Sample* sample, Generation* found) {
  if (level_.IsForked()) return false;
  std::lock_guard<std::mutex> lock(level_.mu_);
  const auto entry = level_.by_index_.find({number_, index});
  if (entry == level_.by_index_.end()) return false;
  Request& request = *entry->second;
  const bool taken = request.has_come && wanted.Contains(request.generation);
  if (taken) {
    *sample = std::move(request.sample);
    *found = request.generation;
  }
  if (taken || last) level_.Forget(entry->second);
  return taken;
}

void SharedLevel::Forget(std::list<Request>::iterator request) {
  bytes_come_ -= request->bytes;
  by_index_.erase(request->of);
  requests_.erase(request);
}

void SharedLevel::Put(uint32_t index, Generation generation,
                      const Sample& sample) {
  if (IsForked()) return;
  const int64_t bytes = SampleBytes(sample) + kBytesBesideRecord;
  std::lock_guard<std::mutex> lock(mu_);
  largest_ = std::max(largest_, bytes);
  all_bytes_ += bytes;
  ++num_put_;
  if (!puts_.empty() && bytes_to_put_ + bytes > max_waiting_) return;
  puts_.push_back(std::make_unique<Record>(
      Record{sample, MakeRecordHeader(record_id_, index, generation, 0, 0),
             EncodedSample(), bytes}));
  bytes_to_put_ += bytes;
  put_.notify_one();
}

bool SharedLevel::IsKept(uint32_t index) const {
  if (max_bytes_ == kUnlimited) return true;
  if (num_samples_ == 0 || num_put_ == 0) return false;
  const double share = max_bytes_ / (num_samples_ * (all_bytes_ / num_put_));
  return std::ldexp(Mix(index ^ record_id_), -64) < share;
}

int SharedLevel::NextAsked(Millis wait, int most, RefurbishTfAsked* asked) {
  const Clock::time_point end = Clock::now() + wait;
  std::unique_lock<std::mutex> lock(mu_);
  // One by one while the size of samples is unknown.
  if (largest_ == 0) most = 1;
  while (true) {
    const Clock::time_point now = Clock::now();
    Clock::time_point next = end;
    int64_t bytes = bytes_come_;
    int count = 0;
    size_t place = 0;
    for (Request& request : requests_) {
      if (request.has_come) continue;
      bytes += largest_;
      if (++place > kMostRepeated && request.again != Clock::time_point()) {
        continue;
      }
      // The first one is asked for however large it is.
      if (count == most || count * largest_ >= kMostAtOnce ||
          (bytes > max_waiting_ && bytes > largest_)) {
        break;
      }
      next = std::min(next, request.again);
      if (request.again > now) continue;
      request.again = Clock::time_point::max();
      asked[count++] = {request.of.first, request.of.second, request.least};
    }
    if (count > 0 || now >= end) return count;
    asked_.wait_until(lock, next);
    if (most == 1) continue;
    lock.unlock();
    std::this_thread::sleep_for(kTogether);
    lock.lock();
  }
}

void SharedLevel::Answered(Millis again, int count,
                           const RefurbishTfAsked* asked) {
  std::lock_guard<std::mutex> lock(mu_);
  for (int i = 0; i < count; ++i) {
    const auto entry = by_index_.find({asked[i].reader, asked[i].index});
    if (entry != by_index_.end()) entry->second->again = Clock::now() + again;
  }
}

int SharedLevel::Found(uint64_t reader, uint32_t index, const char* data,
                       uint64_t size) {
  RecordHeader header;
  if (size < sizeof(header) || size > kMaxRecord) return -1;
  std::memcpy(&header, data, sizeof(header));
  if (!IsRecordHeader(header, record_id_, index) ||
      header.payload_size != size - sizeof(header)) {
    return -1;
  }
  const auto wanted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto entry = by_index_.find({reader, index});
    return entry != by_index_.end() && !entry->second->has_come &&
                   header.generation >= entry->second->least
               ? &*entry->second
               : nullptr;
  };
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (wanted() == nullptr) return 0;
  }
  RecordBuffer record(size);
  if (record.data() == nullptr) return 0;
  std::memcpy(record.data(), data, size);
  Sample sample;
  if (!record.Verify(record_id_, index, size) ||
      !DecodeSample(std::move(record), &sample) || !types_.Allow(sample)) {
    return -1;
  }
  std::lock_guard<std::mutex> lock(mu_);
  Request* const request = wanted();
  if (request == nullptr) return 0;
  request->has_come = true;
  request->generation = header.generation;
  request->sample = std::move(sample);
  request->bytes = size;
  bytes_come_ += size;
  largest_ = std::max<int64_t>(largest_, size);
  return 1;
}

std::unique_ptr<SharedLevel::Record> SharedLevel::NextPut(Millis wait,
                                                          bool* kept) {
  std::unique_ptr<Record> next;
  {
    std::unique_lock<std::mutex> lock(mu_);
    if (puts_.empty()) {
      put_.wait_until(lock, Clock::now() + wait);
      lock.unlock();
      std::this_thread::sleep_for(std::min(wait, kTogether));
      lock.lock();
    }
    if (puts_.empty()) return nullptr;
    next = std::move(puts_.front());
    puts_.pop_front();
    bytes_to_put_ -= next->bytes;
    *kept = IsKept(next->header.index);
  }
  if (!EncodedSample::Encode(next->sample, &next->encoded).ok()) return nullptr;
  uint32_t crc = 0;
  size_t size = 0;
  for (const iovec& part : next->encoded.parts()) {
    crc = Crc32c(part.iov_base, part.iov_len, crc);
    size += part.iov_len;
  }
  next->header = MakeRecordHeader(record_id_, next->header.index,
                                  next->header.generation, size, crc);
  return next;
}

// The functions that the threads in Python call, by ctypes. A level no longer
// exists when all its stages are gone.
#define RTF_EXPORT extern "C" __attribute__((visibility("default")))

// Sets the function that is told of each new level, or null.
RTF_EXPORT void refurbish_tf_level_on_new(ServeLevel serve) {
  serve_level = serve;
}

// Waits for requests, at most `wait_ms`. Returns how many it has written to
// `asked`, at most `most`, or -1 if the level no longer exists.
RTF_EXPORT int refurbish_tf_level_asked(const char* id, int wait_ms, int most,
                                        RefurbishTfAsked* asked) {
  const auto level = Registry<SharedLevel>::Global().Find(id);
  if (level == nullptr) return -1;
  return level->NextAsked(SharedLevel::Millis(wait_ms), most, asked);
}

// Must be called when all of `asked` were read, or not. What was not found is
// asked for again after `again_ms`.
RTF_EXPORT void refurbish_tf_level_answered(const char* id, int again_ms,
                                            int count,
                                            const RefurbishTfAsked* asked) {
  if (const auto level = Registry<SharedLevel>::Global().Find(id)) {
    level->Answered(SharedLevel::Millis(again_ms), count, asked);
  }
}

// Takes a record that was found. Returns 1 if it is used, 0 if it is too old or
// no longer needed, -1 if it is damaged or foreign.
RTF_EXPORT int refurbish_tf_level_found(const char* id, uint64_t reader,
                                        uint32_t index, const char* data,
                                        uint64_t size) {
  const auto level = Registry<SharedLevel>::Global().Find(id);
  return level == nullptr ? 0 : level->Found(reader, index, data, size);
}

// Waits for a sample to write, at most `wait_ms`. Returns the bytes of its
// record, 0 if there is none, or -1 if the level no longer exists. `kept`:
// whether a limited level keeps it.
RTF_EXPORT int64_t refurbish_tf_level_next_put(const char* id, int wait_ms,
                                               uint32_t* index, int* kept,
                                               void** put) {
  const auto level = Registry<SharedLevel>::Global().Find(id);
  if (level == nullptr) return -1;
  bool is_kept = false;
  auto record = level->NextPut(SharedLevel::Millis(wait_ms), &is_kept);
  if (record == nullptr) return 0;
  *index = record->header.index;
  *kept = is_kept;
  const int64_t size = sizeof(RecordHeader) + record->header.payload_size;
  *put = record.release();
  return size;
}

// Writes the record to `to`, unless that is null, and frees it.
RTF_EXPORT void refurbish_tf_level_copy_put(void* put, char* to) {
  const std::unique_ptr<SharedLevel::Record> record(
      static_cast<SharedLevel::Record*>(put));
  if (to == nullptr) return;
  std::memcpy(to, &record->header, sizeof(RecordHeader));
  to += sizeof(RecordHeader);
  for (const iovec& part : record->encoded.parts()) {
    std::memcpy(to, part.iov_base, part.iov_len);
    to += part.iov_len;
  }
}

}  // namespace refurbish_tf
