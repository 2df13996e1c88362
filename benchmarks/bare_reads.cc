// What `python benchmarks/run.py disk` compares the store with: the same reads
// of the same files, in the same order and at the same depth, and nothing else.
//
//   bare_reads DIRECTORY SEED ROUNDS COLD
//
// Prints for each round nanoseconds a sample of: pread, one after the other;
// the read queue, at the depth of the store; the store itself. They take turns.
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/read_ahead.h"

namespace {

using namespace refurbish_tf;

constexpr int kDepth = 64;

struct Place {
  int fd;
  uint64_t offset;
  uint64_t size;
};

void DropFromPageCache(const std::string& directory) {
  DIR* listing = opendir(directory.c_str());
  while (const dirent* entry = readdir(listing)) {
    const int fd = open((directory + "/" + entry->d_name).c_str(), O_RDONLY);
    if (fd < 0) continue;
    fdatasync(fd);  // What is not written yet is not dropped.
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
  closedir(listing);
}

void OneAfterTheOther(const std::vector<Place>& places) {
  uint64_t most = 0;
  for (const Place& place : places) most = std::max(most, place.size);
  std::vector<char> buffer(most);
  for (const Place& place : places) {
    if (pread(place.fd, buffer.data(), place.size, place.offset) <= 0) abort();
  }
}

void Queued(const std::vector<Place>& places, ReadQueue* queue) {
  std::vector<Read> reads(kDepth);
  std::vector<std::vector<char>> buffers(kDepth);
  std::vector<Read*> batch;
  size_t started = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    if (started - i <= kDepth / 2) {
      batch.clear();
      for (; started < places.size() && started - i < kDepth; ++started) {
        Read& read = reads[started % kDepth];
        std::vector<char>& buffer = buffers[started % kDepth];
        buffer.resize(std::max<size_t>(buffer.size(), places[started].size));
        read.fd = places[started].fd;
        read.offset = places[started].offset;
        read.size = places[started].size;
        read.data = buffer.data();
        batch.push_back(&read);
      }
      if (!batch.empty()) queue->Start(batch.data(), batch.size());
    }
    if (queue->Wait(&reads[i % kDepth]) <= 0) abort();
  }
}

void FromTheStore(DiskStore* store, const std::vector<uint64_t>& order) {
  DiskReadAhead ahead(store);
  std::vector<WantedSample> wanted;
  size_t started = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    size_t room = ahead.Room();
    if (room > 0) {
      wanted.clear();
      for (; room > 0 && started < order.size(); --room, ++started) {
        wanted.push_back({started, order[started], {}});
      }
      ahead.Want(wanted);
      ahead.Start();
    }
    RecordBuffer record;
    if (!ahead.Get({i, order[i], {}}, &record)) abort();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string path = argv[1];
  const int rounds = std::atoi(argv[3]);
  const bool cold = std::atoi(argv[4]);
  auto store = DiskStore::Open(path, {});
  if (!store.ok()) return 1;
  const Index& index = (*store)->records().index();
  std::vector<uint64_t> order;
  index.ForEach([&](uint64_t sample, uint64_t) {
    order.push_back(sample);
    return true;
  });
  std::mt19937_64 random(std::atoi(argv[2]));
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::shared_ptr<File>> files;
  std::vector<Place> places;
  for (const uint64_t sample : order) {
    const Location location = DecodeLocation(index.Load(sample));
    bool foreign;
    files.push_back(*(*store)->records().segments().OpenToRead(
        location, /*anew=*/false, &foreign));
    places.push_back({files.back()->fd(), location.offset, location.size});
  }
  const std::unique_ptr<ReadQueue> queue = ReadQueue::Create(kDepth);
  const std::function<void()> ways[] = {
      [&] { OneAfterTheOther(places); }, [&] { Queued(places, queue.get()); },
      [&] { FromTheStore(store->get(), order); }};
  for (int round = -1; round < rounds; ++round) {  // One to warm up.
    for (const auto& way : ways) {
      if (cold) DropFromPageCache(path);
      const auto begin = std::chrono::steady_clock::now();
      way();
      const std::chrono::duration<double, std::nano> time =
          std::chrono::steady_clock::now() - begin;
      if (round >= 0) std::printf("%.1f ", time.count() / order.size());
    }
    if (round >= 0) std::printf("\n");
  }
  return 0;
}
