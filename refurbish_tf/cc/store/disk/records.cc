#include "refurbish_tf/cc/store/disk/records.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace refurbish_tf {
namespace {

constexpr int kReadAttempts = 4;

}  // namespace

bool Records::Get(uint64_t index, GenerationRange wanted,
                  RecordBuffer* record) {
  uint64_t word = Locate(index, wanted);
  for (int attempt = 0; word != 0 && attempt < kReadAttempts; ++attempt) {
    const ReadResult result = Read(index, word, /*anew=*/attempt > 0, record);
    if (result == ReadResult::kNotNow) return false;
    if (result == ReadResult::kRight) {
      if (wanted.Contains(record->header().generation)) {
        ++counts_.hits;
        counts_.from_other_jobs += record->foreign;
        return true;
      }
      // The record is so old that its tag looks like that of a newer
      // generation. Nobody wants it.
      if (ClearWord(index, word)) Dispose(word);
      return false;
    }
    // The record may have been replaced or moved in the meantime.
    const uint64_t now = Locate(index, wanted);
    if (now == word && attempt > 0) {
      MakeAbsent(index, word);
      return false;
    }
    word = now;
  }
  return false;
}

Records::ReadResult Records::Read(uint64_t index, uint64_t word, bool anew,
                                  RecordBuffer* record) {
  const Location location = DecodeLocation(word);
  const auto opened = segments_->OpenToRead(location, anew);
  if (!opened.ok()) {
    return absl::IsUnavailable(opened.status()) ? ReadResult::kNotNow
                                                : ReadResult::kWrong;
  }
  *record = RecordBuffer(location.size);
  if (record->data() == nullptr) return ReadResult::kNotNow;
  record->foreign = opened->foreign;
  ::refurbish_tf::Read read;
  read.fd = opened->file->fd();
  read.offset = location.offset;
  read.data = record->data();
  read.size = location.size;
  ::refurbish_tf::Read* const reads[] = {&read};
  read_queue_->Start(reads, 1);
  const int64_t bytes = read_queue_->Wait(&read);
  return bytes >= 0 && record->Verify(store_id_, index, bytes) &&
                 TagOf(record->header().generation) == location.tag
             ? ReadResult::kRight
             : ReadResult::kWrong;
}

Generation Records::StoredGeneration(uint64_t index) {
  const uint64_t word = index_->Load(index);
  if (word == 0) return kNoGeneration;
  const Location location = DecodeLocation(word);
  const auto opened = segments_->OpenToRead(location, /*anew=*/false);
  RecordHeader header;
  return opened.ok() &&
                 pread(opened->file->fd(), &header, sizeof(header),
                       location.offset) == sizeof(header) &&
                 IsRecordHeader(header, store_id_, index)
             ? header.generation
             : kNoGeneration;
}

PutResult Records::Publish(uint64_t index, Generation generation,
                           const Location& location, int64_t max_bytes,
                           uint64_t* dead) {
  const uint64_t word = EncodeLocation(location);
  uint64_t old = index_->Load(index);
  *dead = word;
  while (true) {
    if (old != 0) {
      const Generation stored = NearestGeneration(TagOfWord(old), generation);
      if (stored >= generation) {
        // Another process has put it first.
        return stored == generation ? PutResult::kStored
                                    : PutResult::kNewerKept;
      }
    }
    // Growth is counted before the exchange and shrinkage after it, so that the
    // store never holds more than is counted.
    const int64_t entries = old == 0;
    const int64_t bytes = static_cast<int64_t>(location.size) -
                          static_cast<int64_t>(DecodeLocation(old).size);
    if (!state_->TryAdd(entries, std::max<int64_t>(bytes, 0), max_bytes)) {
      return PutResult::kNoRoom;
    }
    if (index_->CompareExchange(index, &old, word)) {
      state_->Add(0, std::min<int64_t>(bytes, 0));
      break;
    }
    state_->Add(-entries, -std::max<int64_t>(bytes, 0));
  }
  counts_.bytes_put += location.size;
  counts_.evictions += old != 0;
  *dead = old;
  return PutResult::kStored;
}

bool Records::ClearWord(uint64_t index, uint64_t word) {
  if (!index_->CompareExchange(index, &word, 0)) return false;
  const int64_t size = DecodeLocation(word).size;
  state_->Add(-1, -size);
  state_->AddChanged(size);
  return true;
}

uint64_t Records::Remove(uint64_t index, bool evict,
                         std::optional<Generation> newer) {
  uint64_t word;
  do {
    word = index_->Load(index);
    if (word == 0 || (newer.has_value() &&
                      NearestGeneration(TagOfWord(word), *newer) >= *newer)) {
      return 0;
    }
  } while (!ClearWord(index, word));
  counts_.evictions += evict;
  return word;
}

void Records::MakeAbsent(uint64_t index, uint64_t word) {
  // Frees no space: if the word is damaged, it may point to other records.
  if (!ClearWord(index, word)) return;
  ++counts_.corrupt;
  corrupt_warning_.Say(
      directory_->path(),
      absl::StrCat("sample ", index,
                   " could not be read, or is not what was put: its checksum "
                   "or its type is wrong. Such samples are prepared again."));
}

void Records::Recount() {
  int64_t entries = 0, bytes = 0;
  index_->ForEach([&](uint64_t, uint64_t word) {
    ++entries;
    bytes += DecodeLocation(word).size;
  });
  state_->SetCounts(entries, bytes);
}

}  // namespace refurbish_tf
