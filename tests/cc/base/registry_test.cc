#include "refurbish_tf/cc/base/registry.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

using Object = std::shared_ptr<std::string>;
using Objects = Registry<std::string>;

constexpr std::chrono::seconds kLongest(30);
// Time for a thread to begin waiting, which cannot be observed.
constexpr std::chrono::milliseconds kAWhile(50);

Object Make(const std::string& text) { return std::make_shared<std::string>(text); }

Object Unwanted() {
  ADD_FAILURE() << "It was there.";
  return nullptr;
}

// A thread that makes an object, and does not finish before the test calls `Finish`.
class Maker {
 public:
  Maker(Objects* objects, const std::string& id, Object object)
      : thread_([this, objects, id, object] {
          result_ = objects->GetOrCreate(id, [&]() -> Object {
            making_.set_value();
            finish_.get_future().wait();
            return object;
          });
        }) {
    making_.get_future().wait();
  }
  Object Finish() {
    finish_.set_value();
    thread_.join();
    return result_;
  }

 private:
  std::promise<void> making_, finish_;
  Object result_;
  std::thread thread_;
};

TEST(RegistryTest, FindsOnlyLiveObjects) {
  Objects objects;
  EXPECT_EQ(objects.Find("a"), nullptr);
  Object object = objects.GetOrCreate("a", [] { return Make("one"); });
  EXPECT_EQ(objects.Find("a"), object);
  EXPECT_EQ(objects.GetOrCreate("a", Unwanted), object);
  EXPECT_EQ(objects.Find("b"), nullptr);
  object = nullptr;
  EXPECT_EQ(objects.Find("a"), nullptr);
  object = objects.GetOrCreate("a", [] { return Make("two"); });
  EXPECT_EQ(*object, "two");
}

TEST(RegistryTest, KeepsNothingAlive) {
  Objects objects;
  std::vector<std::weak_ptr<std::string>> all;
  const Object kept = objects.GetOrCreate("kept", [] { return Make("kept"); });
  for (int i = 0; i < 1000; ++i) {
    all.push_back(objects.GetOrCreate(std::to_string(i), [] { return Make(""); }));
    ASSERT_TRUE(all.back().expired());
  }
  EXPECT_EQ(objects.Find("kept"), kept);
}

TEST(RegistryTest, FailedCreationIsRetried) {
  Objects objects;
  EXPECT_EQ(objects.GetOrCreate("a", [] { return nullptr; }), nullptr);
  EXPECT_EQ(objects.Find("a"), nullptr);
  EXPECT_EQ(*objects.GetOrCreate("a", [] { return Make("one"); }), "one");
}

TEST(RegistryTest, OtherObjectsAreAvailableWhileOneIsBeingCreated) {
  Objects objects;
  const Object other = objects.GetOrCreate("other", [] { return Make(""); });
  Maker maker(&objects, "slow", Make("slow"));
  std::future<void> rest = std::async(std::launch::async, [&] {
    EXPECT_EQ(objects.Find("other"), other);
    EXPECT_EQ(objects.GetOrCreate("other", Unwanted), other);
    EXPECT_EQ(*objects.GetOrCreate("new", [] { return Make("new"); }), "new");
    // Enough calls to sweep dead entries.
    for (int i = 0; i < 100; ++i) {
      objects.GetOrCreate(std::to_string(i), [] { return Make(""); });
    }
    // The object that is being made cannot be found yet.
    EXPECT_EQ(objects.Find("slow"), nullptr);
  });
  EXPECT_EQ(rest.wait_for(kLongest), std::future_status::ready);
  const Object slow = maker.Finish();
  EXPECT_EQ(*slow, "slow");
  EXPECT_EQ(objects.Find("slow"), slow);
}

TEST(RegistryTest, ConcurrentCallersWaitForTheObjectBeingCreated) {
  Objects objects;
  const Object made = Make("a");
  Maker maker(&objects, "a", made);
  std::vector<std::future<Object>> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(std::async(std::launch::async, [&] { return objects.GetOrCreate("a", Unwanted); }));
  }
  for (std::future<Object>& one : waiting) {
    EXPECT_EQ(one.wait_for(kAWhile), std::future_status::timeout);
  }
  EXPECT_EQ(maker.Finish(), made);
  for (std::future<Object>& one : waiting) EXPECT_EQ(one.get(), made);
}

TEST(RegistryTest, AWaitingCallerRetriesAfterAFailure) {
  Objects objects;
  Maker maker(&objects, "a", nullptr);
  std::atomic<int> tries{0};
  std::vector<std::future<Object>> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(std::async(std::launch::async, [&] {
      // The next attempt also fails.
      return objects.GetOrCreate("a", [&] { return tries.fetch_add(1) == 0 ? nullptr : Make("a"); });
    }));
  }
  for (std::future<Object>& one : waiting) {
    EXPECT_EQ(one.wait_for(kAWhile), std::future_status::timeout);
  }
  EXPECT_EQ(maker.Finish(), nullptr);
  std::vector<Object> results;
  for (std::future<Object>& one : waiting) results.push_back(one.get());
  EXPECT_EQ(tries, 2);
  const Object made = objects.Find("a");
  ASSERT_NE(made, nullptr);
  int without = 0;
  for (const Object& result : results) {
    if (result == nullptr) {
      ++without;
    } else {
      EXPECT_EQ(result, made);
    }
  }
  EXPECT_EQ(without, 1);
}

TEST(RegistryTest, ConcurrentCallersCreateOnlyOneObject) {
  Objects objects;
  for (int round = 0; round < 50; ++round) {
    const std::string id = std::to_string(round);
    std::atomic<int> made{0};
    std::vector<Object> results(4);
    Threads(4, [&](int i) {
      results[i] = objects.GetOrCreate(id, [&] {
        made.fetch_add(1);
        return Make(id);
      });
    }).Join();
    EXPECT_EQ(made, 1);
    for (const Object& result : results) EXPECT_EQ(result, results[0]);
  }
}

}  // namespace
}  // namespace refurbish_tf
