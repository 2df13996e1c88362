// Chains of layers that include policies, and masks that follow them.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/targets/mask.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace {

// Every operation of a policy, with a parameter.
const std::vector<std::string> kOperations = {
    "identity,0",      "auto_contrast,0",      "equalize,0",       "invert,0",       "color,1.72",
    "contrast,1.72",   "contrast,0.4",         "brightness,1.72",  "sharpness,1.72", "sharpness,0.3",
    "solarize,100",    "posterize,3",          "rotate,27",        "rotate,-11",     "shear_x,0.27",
    "shear_y,-0.27",   "translate_x,0.4",      "translate_y,-0.3", "random_flip,0",  "random_crop,4",
    "random_cutout,6", "random_resized_crop,0"};
constexpr int kFirstRandom = 18;

std::string PolicyText(const std::vector<std::string>& operations, int fill = 128) {
  std::string names, parameters, edges;
  for (size_t i = 0; i < operations.size(); ++i) {
    const size_t comma = operations[i].find(',');
    const char* const separator = i == 0 ? "" : ",";
    absl::StrAppend(&names, separator, operations[i].substr(0, comma));
    absl::StrAppend(&parameters, separator, operations[i].substr(comma + 1));
    absl::StrAppend(&edges, separator, i + 1);
  }
  return absl::StrCat("policy position=-1 end=", operations.size(), " group=1 goes_on=0 fill=", fill,
                      " exact_turns=0 operations=", names, " parameters=", parameters, " edges=", edges);
}

constexpr Pixel kRgb8 = {ValueType::kUint8, 3};

LayerChain ChainOf(const std::vector<std::string>& texts) {
  absl::StatusOr<LayerChain> chain = LayerChain::Parse(texts);
  EXPECT_TRUE(chain.ok()) << chain.status();
  return *std::move(chain);
}

// A copy of exactly the same length, so that the sanitizer reports accesses beyond it.
std::unique_ptr<uint8_t[]> Exactly(const std::vector<uint8_t>& bytes) {
  std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), copy.get());
  return copy;
}

std::vector<uint8_t> Painted(const LayerChain& chain, ImageSize size, const std::vector<uint8_t>& image,
                             const std::vector<int32_t>& draws, const PixelKernels& kernels) {
  const std::unique_ptr<uint8_t[]> from = Exactly(image);
  const ImageSize made = chain.Behind({size, kRgb8})->size;
  const int64_t bytes = 3 * made.height * made.width;
  std::unique_ptr<uint8_t[]> to(new uint8_t[bytes]);
  Painter(chain, size, kRgb8, kernels).Paint(from.get(), draws.data(), to.get());
  return {to.get(), to.get() + bytes};
}

TEST(PolicyTest, FusedLayersMatchOneLayerAtATime) {
  std::mt19937_64 random(1);
  const std::vector<std::string> layers = {
      PolicyText(kOperations),
      PolicyText(kOperations),
      PolicyText(kOperations, 0),
      "random_crop position=-1 padding=3 reflect=0",
      "random_crop position=-1 padding=2 reflect=1",
      "random_flip position=-1",
      "cutout position=-1 side=5",
      "random_resized_crop position=-1 height=19 width=23 scale=0.2,1 ratio=0.7,1.4 antialias=1",
      absl::StrCat("augmix position=-1 width=3 depths=1,3 alpha=1 layers=",
                   absl::StrReplaceAll(PolicyText(kOperations, 0), {{" ", ",~"}}))};
  for (int round = 0; round < 400; ++round) {
    ImageSize size = {static_cast<int64_t>(3 + random() % 40), static_cast<int64_t>(3 + random() % 90)};
    std::vector<uint8_t> image(3 * size.height * size.width);
    for (uint8_t& value : image) value = static_cast<uint8_t>(random() % (round % 3 == 0 ? 60 : 256));
    std::vector<std::string> texts;
    for (size_t i = 0; i < 2 + random() % 5; ++i) texts.push_back(layers[random() % layers.size()]);
    const LayerChain chain = ChainOf(texts);
    std::vector<int32_t> draws(chain.num_draws());
    chain.Draw(ImageSeed(static_cast<int32_t>(random()), round), draws.data());
    ASSERT_TRUE(chain.CheckDraws(draws.data()).ok());
    const std::vector<uint8_t> plain = Painted(chain, size, image, draws, PlainKernels());
    EXPECT_EQ(plain, Painted(chain, size, image, draws, BestKernels())) << round;
    if (chain.ChangesNothing(draws.data())) {
      ASSERT_EQ(plain, image) << round;
    }
    const int32_t* drawn = draws.data();
    for (const std::string& text : texts) {
      const LayerChain one = ChainOf({text});
      image = Painted(one, size, image, {drawn, drawn + one.num_draws()}, PlainKernels());
      size = one.Behind({size, kRgb8})->size;
      drawn += one.num_draws();
    }
    ASSERT_EQ(plain, image) << "round " << round;
  }
}

TEST(PolicyTest, DetectsDrawsThatChangeNothing) {
  const LayerChain chain = ChainOf({"random_flip position=-1", "random_crop position=-1 padding=3 reflect=0",
                                    PolicyText({"identity,0", "invert,0", "color,1", "random_flip,0"})});
  const std::vector<int32_t> unchanged = {0, 3, 3, 0, 0};
  EXPECT_TRUE(chain.ChangesNothing(unchanged.data()));
  for (size_t i = 0; i < 4; ++i) {
    std::vector<int32_t> draws = unchanged;
    draws[i] = 1;
    EXPECT_FALSE(chain.ChangesNothing(draws.data())) << i;
  }
  const std::vector<int32_t> same_color = {0, 3, 3, 2, 0};
  EXPECT_TRUE(chain.ChangesNothing(same_color.data()));
  const LayerChain cutout = ChainOf({"cutout position=-1 side=1"});
  EXPECT_FALSE(cutout.ChangesNothing(unchanged.data()));
}

TEST(PolicyTest, MasksFollowTheGeometry) {
  // No layer changes colors, and each pixel's color is its number, so the result shows where each pixel comes from.
  std::mt19937_64 random(2);
  const std::vector<std::string> geometry(kOperations.begin() + 12, kOperations.begin() + kFirstRandom + 1);
  const std::vector<std::string> layers = {PolicyText(geometry, 0), PolicyText(geometry, 0),
                                           "random_crop position=-1 padding=3 reflect=0",
                                           "random_crop position=-1 padding=2 reflect=1", "random_flip position=-1"};
  for (int round = 0; round < 300; ++round) {
    const ImageSize size = {static_cast<int64_t>(4 + random() % 20), static_cast<int64_t>(4 + random() % 60)};
    std::vector<uint8_t> image;
    std::vector<int32_t> mask;
    for (int64_t place = 1; place <= size.height * size.width; ++place) {
      mask.push_back(static_cast<int32_t>(place * 0x10101));
      for (int c = 0; c < 3; ++c) image.push_back(static_cast<uint8_t>(place >> (8 * c)));
    }
    std::vector<std::string> texts;
    for (size_t i = 0; i < 1 + random() % 4; ++i) texts.push_back(layers[random() % layers.size()]);
    const LayerChain chain = ChainOf(texts);
    std::vector<int32_t> draws(chain.num_draws());
    chain.Draw(ImageSeed(round, 3), draws.data());
    const std::vector<uint8_t> painted = Painted(chain, size, image, draws, BestKernels());
    MaskPoints places(size, BestKernels());
    chain.Apply(draws.data(), &places);
    ASSERT_EQ(places.size().height * places.size().width * 3, static_cast<int64_t>(painted.size()));
    std::vector<int32_t> moved(painted.size() / 3);
    places.Move(reinterpret_cast<const uint8_t*>(mask.data()), sizeof(int32_t),
                reinterpret_cast<uint8_t*>(moved.data()));
    for (size_t i = 0; i < moved.size(); ++i) {
      const int32_t place = painted[3 * i] + 256 * painted[3 * i + 1] + 65536 * painted[3 * i + 2];
      ASSERT_EQ(moved[i], place * 0x10101) << "round " << round << ", pixel " << i;
    }
  }
}

TEST(PolicyTest, MasksIgnoreColorsAndCutouts) {
  const LayerChain chain =
      ChainOf({PolicyText({"invert,0"}), "cutout position=-1 side=3", PolicyText({"random_cutout,6"})});
  std::vector<int32_t> draws(chain.num_draws());
  chain.Draw(ImageSeed(1, 2), draws.data());
  const std::vector<uint8_t> mask = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  std::vector<uint8_t> moved(mask.size());
  // Each pixel of the mask has three bytes.
  MaskPoints points({2, 2}, BestKernels());
  chain.Apply(draws.data(), &points);
  points.Move(mask.data(), 3, moved.data());
  EXPECT_EQ(moved, mask);
}

TEST(PolicyTest, DrawsAreDistributedAccordingToTheEdges) {
  const LayerChain chain =
      ChainOf({"policy position=-1 end=10 group=5 goes_on=0 fill=0 exact_turns=0 operations=invert,identity "
               "parameters=0,0 edges=3,10",
               "policy position=-1 end=10 group=5 goes_on=1 fill=0 exact_turns=0 operations=invert,identity "
               "parameters=0,0 edges=3,10"});
  std::vector<int> counts(10);
  for (int seed = 0; seed < 5000; ++seed) {
    int32_t draws[2];
    chain.Draw(ImageSeed(seed, 7), draws);
    ASSERT_EQ(draws[0] / 5, draws[1] / 5);
    ++counts[draws[0]];
  }
  for (const int count : counts) EXPECT_NEAR(count, 500, 120);
  for (int32_t draw = 0; draw < 10; ++draw) {
    // The second policy does nothing.
    const std::vector<uint8_t> made = Painted(chain, {1, 1}, {1, 2, 3}, {draw, 9}, BestKernels());
    EXPECT_EQ(made, draw < 3 ? (std::vector<uint8_t>{254, 253, 252}) : (std::vector<uint8_t>{1, 2, 3})) << draw;
  }
}

TEST(PolicyTest, RejectsInvalidPolicies) {
  const std::string good = PolicyText({"invert,0", "identity,0"});
  EXPECT_TRUE(LayerChain::Parse({good}).ok());
  const std::vector<std::pair<std::string, std::string>> breaks = {
      {"edges=1,2", "edges=1"},           {"edges=1,2", "edges=2,1"},  {"edges=1,2", "edges=1,3"},
      {"edges=1,2", "edges=1,1"},         {"edges=1,2", "edges=-1,2"}, {"invert,", "inverse,"},
      {"parameters=0,0", "parameters=0"}, {"group=1", "group=3"},      {"end=2", "end=0"},
      {"fill=128", "fill=256"},           {"goes_on=0", "goes_on=2"}};
  for (const auto& [from, to] : breaks) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    EXPECT_FALSE(LayerChain::Parse({text}).ok()) << text;
  }
  for (const char* operation : {"shear_y,1.01", "translate_x,-1.5", "posterize,-1", "posterize,9", "solarize,257",
                                "brightness,-0.1", "color,101", "rotate,361", "invert,1", "random_crop,-1"}) {
    EXPECT_FALSE(LayerChain::Parse({PolicyText({operation})}).ok()) << operation;
  }
  const LayerChain chain = ChainOf({good});
  EXPECT_TRUE(chain.Behind({{1, 32767}, kRgb8}).ok());
  EXPECT_FALSE(chain.Behind({{1, 32768}, kRgb8}).ok());
  EXPECT_FALSE(chain.Behind({{1, 1}, {ValueType::kUint8, 1}}).ok());
  EXPECT_FALSE(chain.Behind({{1, 1}, {ValueType::kUint16, 3}}).ok());
  // A policy takes only three channels, so their number is known after it, even if it was not known before.
  EXPECT_EQ(chain.Behind({{1, 1}, {ValueType::kUint8, kUnknown}})->pixel.channels, 3);
  for (const int32_t draw : {-1, 2}) EXPECT_FALSE(chain.CheckDraws(&draw).ok()) << draw;
  const LayerChain crop = ChainOf({PolicyText({"random_crop,4"})});
  for (const int32_t beyond : {-1, 9}) {
    const int32_t draws[] = {0, 8, beyond};
    EXPECT_FALSE(crop.CheckDraws(draws).ok()) << beyond;
  }
}

}  // namespace
}  // namespace refurbish_tf
