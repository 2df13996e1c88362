// Layers that move whole pixels follow their definitions, alone or in one pass with other layers, for any pixel type.
#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/targets/mask.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace {

using MoveDice = std::mt19937_64;

int64_t DieFrom(MoveDice& dice, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(dice() % (high - low + 1));
}

struct MovedImage {
  ImageSize size;
  Pixel pixel;
  std::vector<uint8_t> bytes;
};

// The coordinate that padding copies to `i`, which may be beyond the ends; -1 if it leaves the pixel empty.
int64_t PointBeyond(absl::string_view mode, int64_t i, int64_t size) {
  if (i >= 0 && i < size) return i;
  if (mode == "edge") return i < 0 ? 0 : size - 1;
  if (mode == "reflect") return i < 0 ? -i : 2 * size - 2 - i;
  if (mode == "symmetric") return i < 0 ? -1 - i : 2 * size - 1 - i;
  return -1;
}

// `source(y, x)` returns where in `from` a pixel comes from; a negative coordinate leaves the pixel empty.
template <class Source>
MovedImage MovedBy(const MovedImage& from, ImageSize size, uint8_t fill, const Source& source) {
  MovedImage made = {size, from.pixel, std::vector<uint8_t>(size.height * size.width * from.pixel.bytes(), fill)};
  uint8_t* to = made.bytes.data();
  for (int64_t y = 0; y < size.height; ++y) {
    for (int64_t x = 0; x < size.width; ++x, to += from.pixel.bytes()) {
      const auto [from_y, from_x] = source(y, x);
      if (from_y < 0 || from_x < 0) continue;
      std::copy_n(from.bytes.data() + (from_y * from.size.width + from_x) * from.pixel.bytes(), from.pixel.bytes(), to);
    }
  }
  return made;
}

MovedImage Painted(const LayerChain& chain, const int32_t* draws, const MovedImage& from, const PixelKernels& kernels) {
  const absl::StatusOr<ImageSpec> made = chain.Behind({from.size, from.pixel}, draws);
  EXPECT_TRUE(made.ok()) << made.status();
  MovedImage to = {made->size, from.pixel,
                   std::vector<uint8_t>(made->size.height * made->size.width * from.pixel.bytes())};
  Painter(chain, from.size, from.pixel, kernels).Paint(from.bytes.data(), draws, to.bytes.data());
  return to;
}

// Computes layers that move whole pixels by their definitions. Runs other layers alone, with the plain kernels.
MovedImage MovedAlone(const std::string& text, const int32_t* draws, const MovedImage& from) {
  using Place = std::pair<int64_t, int64_t>;
  const auto [height, width] = from.size;
  Arguments layer(text);
  if (layer.name() == "pad") {
    const int64_t left = layer.Integer("left", 0, 99), top = layer.Integer("top", 0, 99);
    const absl::string_view mode = layer.Text("mode");
    return MovedBy(from, {height + top + layer.Integer("bottom", 0, 99), width + left + layer.Integer("right", 0, 99)},
                   layer.Integer("fill", 0, 255), [&, height = height, width = width](int64_t y, int64_t x) {
                     return Place(PointBeyond(mode, y - top, height), PointBeyond(mode, x - left, width));
                   });
  }
  if (layer.name() == "center_crop") {
    const ImageSize size = {layer.Integer("height", 1, 99), layer.Integer("width", 1, 99)};
    // Halves of odd numbers are rounded to the even number if the image is cut, and towards 0 if it is padded.
    const auto begin = [](int64_t side, int64_t made) {
      const int64_t more = side - made;
      return more < 0 ? -(-more / 2) : more % 4 == 3 ? more / 2 + 1 : more / 2;
    };
    const int64_t top = begin(height, size.height), left = begin(width, size.width);
    return MovedBy(from, size, 0, [&, height = height, width = width](int64_t y, int64_t x) {
      return Place(PointBeyond("", y + top, height), PointBeyond("", x + left, width));
    });
  }
  if (layer.name() == "random_transpose") {
    return MovedBy(from, {width, height}, 0, [](int64_t y, int64_t x) { return Place(x, y); });
  }
  if (layer.name() == "random_rotate90") {
    MovedImage made = from;
    for (int turn = 0; turn < draws[0]; ++turn) {
      const int64_t last = made.size.width - 1;
      made = MovedBy(made, {made.size.width, made.size.height}, 0,
                     [&](int64_t y, int64_t x) { return Place(x, last - y); });
    }
    return made;
  }
  if (layer.name() == "random_flip" && !layer.Has("mode")) {
    return MovedBy(from, from.size, 0,
                   [&, width = width](int64_t y, int64_t x) { return Place(y, draws[0] == 1 ? width - 1 - x : x); });
  }
  if (layer.name() == "random_crop" && !layer.Has("height")) {
    const int64_t top = draws[0] - layer.Integer("padding", 0, 99), left = draws[1] - layer.Integer("padding", 0, 99);
    const char* const mode = layer.Boolean("reflect") ? "reflect" : "";
    return MovedBy(from, from.size, 0, [&, height = height, width = width](int64_t y, int64_t x) {
      return Place(PointBeyond(mode, y + top, height), PointBeyond(mode, x + left, width));
    });
  }
  if (layer.name() == "cutout") {
    const int64_t side = layer.Integer("side", 1, 1 << 30);
    const int64_t top = ((draws[0] * height) >> 31) - side / 2, left = ((draws[1] * width) >> 31) - side / 2;
    return MovedBy(from, from.size, 0, [&](int64_t y, int64_t x) {
      const bool is_cut = y >= top && y < top + side && x >= left && x < left + side;
      return is_cut ? Place(-1, -1) : Place(y, x);
    });
  }
  return Painted(*LayerChain::Parse({text}), draws, from, PlainKernels());
}

// `simple`: only a layer that one pass applies with others of these.
std::string RollMove(MoveDice& dice, const MovedImage& image, bool simple = false) {
  constexpr int kSimple[] = {4, 13, 14, 15};
  const auto [height, width] = image.size;
  const int64_t least_side = std::min(height, width);
  const bool is_bytes = image.pixel.type == ValueType::kUint8, has_colors = is_bytes && image.pixel.channels == 3;
  const bool is_distorted = is_bytes && (has_colors || image.pixel.channels == 1);
  const auto below = [&](int64_t side) { return DieFrom(dice, 0, std::min<int64_t>(side, 7) - 1); };
  switch (simple ? kSimple[dice() % 4] : dice() % 20) {
    case 0:
      return absl::StrCat("center_crop position=-1 height=", DieFrom(dice, 1, 20), " width=", DieFrom(dice, 1, 20));
    case 1:
      return "random_transpose position=-1 below=2147483648";
    case 2:
      return height == width ? "random_rotate90 position=-1" : "random_flip position=-1 mode=vertical";
    case 3:
      return "random_flip position=-1 mode=horizontal_and_vertical";
    case 4:
      return absl::StrCat("cutout position=-1 side=", DieFrom(dice, 1, 2 * least_side));
    case 5:
      return !is_distorted ? "random_crop position=-1 padding=3 reflect=0"
                           : std::vector<std::string>{"random_solarize position=-1 below=2147483648 threshold=0",
                                                      "random_equalize position=-1 below=2147483648",
                                                      "random_autocontrast position=-1 below=2147483648",
                                                      "random_posterize position=-1 below=2147483648 bits=2,7",
                                                      "random_adjust_sharpness position=-1 below=2147483648 "
                                                      "sharpness_factor=0,3"}[dice() % 5];
    case 6:
      if (has_colors && dice() % 2 == 0) return "random_rotation position=-1 degrees=-180,180";
      return is_bytes || image.pixel.type == ValueType::kFloat32
                 ? "gaussian_noise position=-1 mean=0.1 sigma=0,0.2 clip=1"
                 : "random_flip position=-1";
    case 7:
      return absl::StrCat("resize position=-1 antialias=1 height=", DieFrom(dice, 1, 20),
                          " width=", DieFrom(dice, 1, 20));
    case 8:
      return absl::StrCat("random_zoom_out position=-1 below=2147483648 sides=1,3 fill=",
                          is_bytes && image.pixel.channels <= 4 ? 77 : 0);
    case 9:
      return "random_choice position=-1 ends=1073741824,2147483648 layers0=random_resize,~position=0,~short=2,~number=9,~"
             "antialias=1 layers1=random_order,~position=1,~number=2,~layers0=cutout,~~position=0,~~side=3,~layers1="
             "random_flip,~~position=1";
    case 10:
      return "random_order position=-1 number=3 layers0=random_crop,~position=0,~padding=2,~reflect=0 layers1=cutout,~"
             "position=1,~side=5 layers2=random_flip,~position=2,~mode=horizontal_and_vertical";
    case 11:
      return absl::StrCat("random_resized_crop position=-1 scale=0.2,0.9 ratio=0.5,2 antialias=1 height=",
                          DieFrom(dice, 1, 20), " width=", DieFrom(dice, 1, 20));
    case 12:
      return absl::StrCat("random_crop position=-1 reflect=0 pad_if_needed=1 padding=2 height=", DieFrom(dice, 1, 20),
                          " width=", DieFrom(dice, 1, 20));
    case 13:
      return absl::StrCat("random_crop position=-1 reflect=1 padding=", DieFrom(dice, 0, least_side - 1));
    case 14:
      return absl::StrCat("random_crop position=-1 reflect=0 padding=", DieFrom(dice, 0, least_side + 3));
    case 15:
      return "random_flip position=-1";
    default: {
      const std::string mode = std::vector<std::string>{"constant", "edge", "reflect", "symmetric"}[dice() % 4];
      const bool fills = is_bytes && image.pixel.channels <= 4 && mode == "constant" && dice() % 2 == 0;
      return absl::StrCat("pad position=-1 left=", below(width), " top=", below(height), " right=", below(width),
                          " bottom=", below(height), " mode=", mode, " fill=", fills ? 200 : 0);
    }
  }
}

TEST(GeometryTest, ChainsMatchReferenceLayersAppliedOneByOne) {
  MoveDice dice(1);
  for (int round = 0; round < 5000; ++round) {
    const Pixel pixel = {
        std::array{ValueType::kUint8, ValueType::kUint16, ValueType::kInt16, ValueType::kFloat32}[dice() % 4],
        std::array<int64_t, 8>{1, 3, 2, 3, 4, 5, 13, 64}[dice() % 8]};
    MovedImage image = {{DieFrom(dice, 1, 14), DieFrom(dice, 1, dice() % 5 == 0 ? 90 : 14)}, pixel, {}};
    if (dice() % 2 == 0) image.size.width = image.size.height;
    image.bytes.resize(image.size.height * image.size.width * pixel.bytes());
    // Bytes below 64 make floats that are small enough to be resized.
    for (uint8_t& byte : image.bytes) byte = dice() % 64;
    MovedImage expected = image;
    std::vector<std::string> texts;
    std::vector<int32_t> draws;
    for (int64_t i = DieFrom(dice, 1, 5); i > 0; --i) {
      texts.push_back(RollMove(dice, expected, /*simple=*/round % 5 < 2));
      const LayerChain one = *LayerChain::Parse({texts.back()});
      const size_t first = draws.size();
      draws.resize(first + one.num_draws());
      one.Draw(ImageSeed(round, i), draws.data() + first);
      expected = MovedAlone(texts.back(), draws.data() + first, expected);
    }
    const LayerChain chain = *LayerChain::Parse(texts);
    ASSERT_TRUE(chain.CheckDraws(draws.data()).ok());
    for (const PixelKernels* kernels : {&PlainKernels(), &BestKernels()}) {
      const MovedImage made = Painted(chain, draws.data(), image, *kernels);
      ASSERT_EQ(made.bytes, expected.bytes)
          << image.size.height << " x " << image.size.width << " x " << pixel.channels << " of " << NameOf(pixel.type)
          << ": " << testing::PrintToString(texts) << testing::PrintToString(draws);
    }
  }
}

// Leaves out layers that hide, blend or add to pixels, because a mask does not show what they do.
TEST(GeometryTest, MasksMoveWithTheirImage) {
  MoveDice dice(2);
  int compared = 0;
  for (int round = 0; round < 1000; ++round) {
    MovedImage image = {{DieFrom(dice, 1, 14), DieFrom(dice, 1, 14)}, {ValueType::kFloat32, 1}, {}};
    image.bytes.resize(image.size.height * image.size.width * 4);
    for (uint8_t& byte : image.bytes) byte = dice() % 256;
    MaskPoints mask(image.size, BestKernels());
    MovedImage expected = image;
    for (int64_t i = DieFrom(dice, 1, 4); i > 0; --i) {
      const std::string text = RollMove(dice, expected);
      if (absl::StrContains(text, "cutout") || absl::StrContains(text, "resize")) continue;
      if (absl::StrContains(text, "noise")) continue;
      const LayerChain one = *LayerChain::Parse({text});
      std::vector<int32_t> draws(one.num_draws());
      one.Draw(ImageSeed(round, i), draws.data());
      expected = MovedAlone(text, draws.data(), expected);
      one.Apply(draws.data(), &mask);
      ++compared;
    }
    ASSERT_EQ(mask.size().height, expected.size.height);
    std::vector<uint8_t> moved(expected.bytes.size());
    mask.Move(image.bytes.data(), 4, moved.data());
    ASSERT_EQ(moved, expected.bytes) << round;
  }
  EXPECT_GT(compared, 1000);
}

TEST(GeometryTest, RandomSizesAreKnownFromTheDraws) {
  const LayerChain chain =
      *LayerChain::Parse({"random_resize position=-1 short=5 number=10 antialias=1",
                          "random_crop position=-1 padding=0 reflect=0 height=9 width=9 pad_if_needed=0"});
  const ImageSpec image = {{20, 30}, {ValueType::kUint8, 3}};
  const int32_t large[] = {4, 0, 0}, small[] = {3, 0, 0};
  EXPECT_TRUE(chain.Behind(image)->size_is_drawn);
  EXPECT_EQ(chain.Behind(image, large)->size, (ImageSize{9, 9}));
  EXPECT_FALSE(chain.Behind(image, small).ok());
  const LayerChain one = *LayerChain::Parse({"random_resize position=-1 short=5 number=10 antialias=1"});
  EXPECT_EQ(one.Behind(image)->size.height, kUnknown);
  EXPECT_EQ(one.Behind(image, large)->size, (ImageSize{9, 13}));
  for (const char* const text :
       {"random_choice position=-1 ends=2147483647 layers0=random_flip",
        "random_order position=-1 number=2 layers0=cutout,~side=1",
        "random_choice position=-1 ends=9,8,2147483648 layers0=random_flip layers1=random_flip layers2=random_flip",
        "random_iou_crop position=-1 scale=0.3,1 ratio=0.5,2 options=0 trials=0"}) {
    EXPECT_FALSE(LayerChain::Parse({text}).ok()) << text;
  }
}

TEST(GeometryTest, RejectsPaddingBeyondTheLimits) {
  const auto behind = [](const std::string& rest, ImageSize size) {
    return LayerChain::Parse({absl::StrCat("pad position=-1 left=3 top=0 right=4 bottom=0 fill=0 mode=", rest)})
        ->Behind({size, {ValueType::kFloat32, 3}});
  };
  EXPECT_TRUE(behind("reflect", {1, 5}).ok());
  EXPECT_FALSE(behind("reflect", {9, 4}).ok());
  EXPECT_TRUE(behind("symmetric", {1, 4}).ok());
  EXPECT_FALSE(behind("symmetric", {9, 3}).ok());
  EXPECT_TRUE(behind("edge", {1, 1}).ok());
  EXPECT_FALSE(behind("edge", {1, LayerChain::kMaxSide - 6}).ok());
  for (const char* const text : {"mode=wrap fill=0", "mode=edge fill=256", "mode=edge fill=1,2", "mode=edge"}) {
    EXPECT_FALSE(LayerChain::Parse({absl::StrCat("pad position=-1 left=3 top=0 right=4 bottom=0 ", text)}).ok())
        << text;
  }
}

}  // namespace
}  // namespace refurbish_tf
