// Rounds in which the machine's clock jumps and jobs that have claimed samples die: a claim keeps a sample from the
// other jobs while its job lives, and only for a limited time.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/store_env.h"
#include "tests/cc/store/disk/disk_fuzz_testing.h"

namespace refurbish_tf {
namespace {

// Equals kClaimSeconds in shared_state.cc, which explains it.
constexpr uint64_t kClaimSeconds = 10;

class JumpingClock : public StoreEnv {
 public:
  explicit JumpingClock(const uint64_t* now) : now_(now) {}
  uint64_t Seconds() override { return *now_; }

 private:
  const uint64_t* const now_;
};

// A job that makes claims, in this process or in a `ClaimingProcess`.
class ClaimingJob {
 public:
  struct Request {
    uint64_t sample;
    Generation generation;
  };

  ClaimingJob(const std::string& path, StoreEnv* env) : store_(*OpenStore(path, env)) {
    store_->MakeRoomFor(IndexOf(kSamples - 1) + 1);
    job_ = *store_->Join();
    job_->BeginFirstEpoch();
  }
  bool Claim(const Request& request) { return job_->Claim(request.sample, request.generation); }

 private:
  const std::unique_ptr<DiskStore> store_;
  std::unique_ptr<SharedState::Job> job_;
};

class ClaimingProcess {
 public:
  // Make it before any thread starts, because it forks. `fork` runs a body in a new process, and returns its id.
  template <class Fork>
  ClaimingProcess(const Fork& fork, const std::string& path, StoreEnv* env) {
    int requests[2], answers[2];
    EXPECT_EQ(pipe2(requests, O_CLOEXEC) + pipe2(answers, O_CLOEXEC), 0);
    process_ = fork([&] {
      alarm(kLongestRound);
      close(requests[1]);
      ClaimingJob job(path, env);
      char answer = 'r';
      ClaimingJob::Request request;
      while (write(answers[1], &answer, 1) == 1 && read(requests[0], &request, sizeof(request)) == sizeof(request)) {
        answer = job.Claim(request);
      }
      return 0;
    });
    close(requests[0]);
    close(answers[1]);
    requests_ = requests[1];
    answers_ = answers[0];
    EXPECT_EQ(Answer(), 'r');
  }

  bool Claim(const ClaimingJob::Request& request) {
    EXPECT_EQ(write(requests_, &request, sizeof(request)), ssize_t{sizeof(request)});
    return Answer() != 0;
  }
  pid_t process() const { return process_; }
  // Closing the pipes ends the process.
  void Close() {
    close(requests_);
    close(answers_);
  }

 private:
  char Answer() {
    char answer = '?';
    EXPECT_EQ(read(answers_, &answer, 1), 1);
    return answer;
  }

  pid_t process_;
  int requests_, answers_;
};

TEST_F(DiskFuzzTest, ClaimsWorkDespiteClockJumpsAndDyingJobs) {
  RunRounds([&](Random& random) {
    auto* const now =
        static_cast<uint64_t*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    *now = random();
    JumpingClock clock(now);
    const auto fork = [](const auto& body) { return Fork(body); };
    std::map<int, std::unique_ptr<ClaimingProcess>> processes;
    std::map<int, std::unique_ptr<ClaimingJob>> jobs;
    int next = 0;
    for (; next < 3; ++next) {
      processes[next] = std::make_unique<ClaimingProcess>(fork, store_, &clock);
    }
    for (; next < 5; ++next) {
      jobs[next] = std::make_unique<ClaimingJob>(store_, &clock);
    }
    struct Claimed {
      int by;
      Generation generation;
      uint64_t at;
    };
    std::map<uint64_t, Claimed> claimed;
    // The clock must not advance so far that the seconds stored in a claim repeat.
    const uint64_t begin = *now;
    for (int step = 0; step < 4 * kSteps; ++step) {
      switch (random() % 32) {
        case 0:
          *now = begin + random() % 60'000;
          break;
        case 1:
          *now += 3'600 * (*now < begin + 30'000);
          break;
        case 2:
        case 3:
        case 4:
          *now += random() % 4;
          break;
        case 5:  // A job dies, and a new one may replace it.
          if (random() % 8 == 0 && !processes.empty()) {
            const auto process = processes.begin();
            kill(process->second->process(), SIGKILL);
            EXPECT_EQ(Join(process->second->process()), -SIGKILL);
            process->second->Close();
            processes.erase(process);
          } else if (random() % 4 == 0) {
            jobs.erase(jobs.begin());
          }
          if (jobs.size() < 2 || random() % 8 == 0) {
            jobs[next++] = std::make_unique<ClaimingJob>(store_, &clock);
          }
          break;
        default: {
          const ClaimingJob::Request request = {random() % 4, static_cast<Generation>(random() % 3)};
          const auto found = claimed.find(request.sample);
          const size_t k = random() % (jobs.size() + processes.size());
          const bool is_process = k >= jobs.size();
          const int by =
              is_process ? std::next(processes.begin(), k - jobs.size())->first : std::next(jobs.begin(), k)->first;
          const bool is_claimed = found != claimed.end() && found->second.by != by &&
                                  found->second.generation >= request.generation &&
                                  jobs.count(found->second.by) + processes.count(found->second.by) > 0 &&
                                  found->second.at <= *now && *now - found->second.at < kClaimSeconds;
          EXPECT_EQ(is_process ? processes[by]->Claim(request) : jobs[by]->Claim(request), !is_claimed) << step;
          if (!is_claimed) claimed[request.sample] = {by, request.generation, *now};
        }
      }
    }
    // Closes all pipes first, because each process also holds the pipes of earlier ones open.
    for (auto& [number, process] : processes) process->Close();
    for (auto& [number, process] : processes) {
      EXPECT_EQ(Join(process->process()), 0);
    }
    jobs.clear();
    ExpectWorksAnew(store_);
  });
}

}  // namespace
}  // namespace refurbish_tf
