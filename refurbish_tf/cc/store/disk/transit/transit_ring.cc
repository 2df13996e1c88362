#include "refurbish_tf/cc/store/disk/transit/transit_ring.h"

#include <fcntl.h>

#include <algorithm>

#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/store_files.h"

namespace refurbish_tf {
namespace {

// A word, from the highest bit on: tag (15 bits), index (28), units (15), lap
// (5), published (1). The lap distinguishes an entry from earlier ones in its
// unit, in case a process took the position and died before it marked the word.
constexpr int kLapBits = 5;
constexpr int kUnitsBits = 15;
constexpr int kIndexBits = 28;
static_assert(Index::kMaxSamples == uint64_t{1} << kIndexBits, "");

constexpr int kNumUnitsBits = 27;
constexpr uint64_t kMostSlots = (uint64_t{1} << kNumUnitsBits) - 1;
static_assert(kMostSlots < Index::kMaxSamples, "");
static_assert(kMaxRecord / kSmallUnit < uint64_t{1} << 21, "");

// A larger head is damaged.
constexpr uint64_t kMostHead = uint64_t{1} << 47;

// A record takes at most 1 / kPartsOfRing of the ring.
constexpr uint64_t kPartsOfRing = 8;

constexpr uint64_t kMostUnits = (uint64_t{1} << kUnitsBits) - 1;

// If records vary in size, the ring has about this many units. The largest
// record that may be put then takes as many units as fit into a word.
constexpr uint64_t kUnitsOfRing = kPartsOfRing * (kMostUnits + 1);

constexpr uint64_t Low(uint64_t word, int bits) {
  return word & ((uint64_t{1} << bits) - 1);
}

uint64_t Lap(uint64_t position, uint64_t num_units) {
  return Low(position / num_units, kLapBits);
}

}  // namespace

TransitRing::Geometry TransitRing::Geometry::For(int64_t bytes,
                                                 int64_t record_bytes) {
  const int64_t unit = record_bytes > 0 ? RecordSpace(record_bytes)
                                        : (bytes / kUnitsOfRing + kSmallUnit) /
                                              kSmallUnit * kSmallUnit;
  return {static_cast<uint64_t>(unit),
          std::min<uint64_t>(bytes / unit, kMostSlots)};
}

TransitRing::Geometry TransitRing::Geometry::Of(uint64_t number) {
  const Geometry geometry = {(number >> kNumUnitsBits) * kSmallUnit,
                             Low(number, kNumUnitsBits)};
  return geometry.unit == 0 || geometry.num_units == 0 ? Geometry{0, 0}
                                                       : geometry;
}

uint64_t TransitRing::Geometry::number() const {
  return unit / kSmallUnit << kNumUnitsBits | num_units;
}

uint64_t TransitRing::Geometry::MostUnits() const {
  return std::clamp<uint64_t>(num_units / kPartsOfRing, 1, kMostUnits);
}

absl::Status TransitRing::Plan(int64_t bytes, int64_t record_bytes,
                               bool alone) {
  const Geometry own = Geometry::For(bytes, record_bytes);
  if (IsOpen() || own.num_units == 0) return absl::OkStatus();
  auto files = std::make_unique<Files>();
  files->own = own;
  RTF_ASSIGN_OR_RETURN(files->words, Index::Open(directory_, kRingWordsFile));
  RTF_ASSIGN_OR_RETURN(files->records,
                       directory_->OpenFile(kRingRecordsFile, O_CREAT));
  uint64_t number = state_->Ring(SharedState::kGeometry);
  if (alone && number != own.number() &&
      state_->ExchangeRing(SharedState::kGeometry, &number, 0)) {
    // Frees the old records, which nobody can find in another geometry.
    (void)directory_->env().Truncate(files->records->fd(), 0);
  }
  absl::Status reserved = files->words->ReserveFirst(Agree(own).num_units);
  if (reserved.ok()) files_ = files.release();
  return reserved;
}

int64_t TransitRing::DiskBytes() const {
  return directory_->DiskBytes(kRingRecordsFile);
}

TransitRing::Geometry TransitRing::Agree(const Geometry& own) {
  uint64_t number = state_->Ring(SharedState::kGeometry);
  while (Geometry::Of(number).num_units == 0) {
    if (state_->ExchangeRing(SharedState::kGeometry, &number, own.number())) {
      return own;
    }
  }
  return Geometry::Of(number);
}

bool TransitRing::Holds(uint64_t position) const {
  const uint64_t now = head();
  return position < now && now - position <= num_units();
}

TransitRing::Entry TransitRing::At(uint64_t position) const {
  Entry entry;
  entry.next = position + 1;
  const Files* const files = this->files();
  const Geometry geometry = this->geometry();
  const uint64_t now = head();
  if (files == nullptr || position >= now) return entry;
  if (now - position > geometry.num_units) {
    entry.next = now - geometry.num_units;
    return entry;
  }
  const uint64_t first_unit = position % geometry.num_units;
  uint64_t word = files->words->Load(first_unit);
  const bool published = word & kPublished;
  word >>= 1;
  const uint64_t lap = Low(word, kLapBits);
  word >>= kLapBits;
  const uint64_t units = Low(word, kUnitsBits);
  word >>= kUnitsBits;
  // In these cases, the word is of an earlier entry or damaged.
  if (lap != Lap(position, geometry.num_units) || units == 0 ||
      units > geometry.MostUnits() || first_unit + units > geometry.num_units) {
    return entry;
  }
  entry.state = published ? Entry::State::kThere : Entry::State::kPending;
  entry.index = Low(word, kIndexBits);
  entry.tag = word >> kIndexBits;
  entry.next = position + units;
  entry.offset = first_unit * geometry.unit;
  entry.size = units * geometry.unit;
  return entry;
}

std::optional<TransitRing::Span> TransitRing::Append(uint32_t index,
                                                     Generation generation,
                                                     uint64_t space) {
  const Files* const files = this->files();
  const Geometry geometry = Agree(files->own);
  const uint64_t units = (space + geometry.unit - 1) / geometry.unit;
  if (units > geometry.MostUnits()) return std::nullopt;
  uint64_t before = head();
  Span span;
  span.geometry = geometry.number();
  do {
    span.position = before < kMostHead ? before : 0;
    span.first_unit = span.position % geometry.num_units;
    if (span.first_unit + units > geometry.num_units) {
      span.position += geometry.num_units - span.first_unit;
      span.first_unit = 0;
    }
  } while (!state_->ExchangeRing(SharedState::kHead, &before,
                                 span.position + units));
  span.offset = span.first_unit * geometry.unit;
  span.word = uint64_t{TagOf(generation)} << 49 | uint64_t{index} << 21 |
              units << 6 | Lap(span.position, geometry.num_units) << 1;
  if (!files->words->Reserve(span.first_unit).ok()) return std::nullopt;
  uint64_t word = files->words->Load(span.first_unit);
  do {
    // If another process has taken the unit in the next round, its word stays.
    if (!IsOwn(span)) return std::nullopt;
    directory_->env().BeforeSharedWrite();
  } while (!files->words->CompareExchange(span.first_unit, &word, span.word));
  return span;
}

void TransitRing::Replace(const Span& span, uint64_t word) {
  uint64_t pending = span.word;
  directory_->env().BeforeSharedWrite();
  files()->words->CompareExchange(span.first_unit, &pending, word);
}

void TransitRing::Clear() {
  uint64_t before = head();
  while (!state_->ExchangeRing(SharedState::kHead, &before,
                               before + num_units())) {
  }
}

}  // namespace refurbish_tf
