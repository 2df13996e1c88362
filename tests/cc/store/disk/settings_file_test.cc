// The settings of a store: the first user sets them, and a user with other settings is refused.
#include "refurbish_tf/cc/store/disk/settings_file.h"

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "tests/cc/store/disk/disk_store_testing.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

using SettingsTest = StoreDirectoryTest;

TEST_F(SettingsTest, AcceptsEqualAndNewSettingsAndRefusesDifferentOnes) {
  {
    auto store = Open();
    EXPECT_TRUE(store->settings().empty());
    EXPECT_TRUE(store->Agree({{"r", "3"}, {"seed", "7"}}).ok());
    EXPECT_TRUE(store->Agree({{"r", "3"}}).ok());
    EXPECT_TRUE(store->Agree({{"version", "two\nlines \\n of it\\"}}).ok());
  }
  auto store = Open();
  const Settings expected = {{"r", "3"}, {"seed", "7"}, {"version", "two\nlines \\n of it\\"}};
  EXPECT_EQ(store->settings(), expected);
  EXPECT_TRUE(store->Agree(expected).ok());
  const absl::Status status = store->Agree({{"r", "4"}, {"seed", "8"}, {"spec", "uint8"}});
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  for (const char* part : {"r is 4", "3", "seed is 8", "7"}) {
    EXPECT_PRED_FORMAT2(testing::IsSubstring, part, std::string(status.message()));
  }
  EXPECT_PRED_FORMAT2(testing::IsNotSubstring, "spec", std::string(status.message()));
  // None of the refused settings was stored.
  EXPECT_EQ(store->settings(), expected);
  EXPECT_EQ(Open()->settings(), expected);
  EXPECT_TRUE(store->Agree({{"r", "4"}}, /*replace=*/true).ok());
  EXPECT_EQ(store->settings().at("r"), "4");
  EXPECT_EQ(Open()->settings().at("r"), "4");
}

TEST_F(SettingsTest, ConcurrentStoresAgreeOnOneValue) {
  constexpr int kSettings = 100;
  std::vector<std::unique_ptr<DiskStore>> stores;
  for (int i = 0; i < 4; ++i) stores.push_back(Open());
  std::promise<void> begin;
  std::shared_future<void> begun(begin.get_future());
  std::atomic<int> agreed[kSettings] = {};
  Threads threads(4, [&agreed, &stores, begun](int i) {
    begun.wait();
    for (int k = 0; k < kSettings; ++k) {
      agreed[k] += stores[i]->Agree({{std::to_string(k), std::to_string(i)}}).ok();
    }
  });
  begin.set_value();
  threads.Join();
  for (const auto& count : agreed) EXPECT_EQ(count, 1);
  EXPECT_EQ(Open()->settings().size(), kSettings);
}

}  // namespace
}  // namespace refurbish_tf
