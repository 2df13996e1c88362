// Targets follow their image: masks, boxes, key points and blended maps go where its pixels go.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/layer_chain.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/targets/blended_map.h"
#include "refurbish_tf/cc/image/targets/boxes.h"
#include "refurbish_tf/cc/image/targets/key_points.h"
#include "refurbish_tf/cc/image/targets/mask.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace {

const std::vector<std::string> kMovers = {
    "policy position=-1 end=7 group=1 goes_on=0 fill=0 exact_turns=0 "
    "operations=rotate,rotate,shear_x,shear_y,translate_x,translate_y,identity "
    "parameters=27,-11,0.27,-0.3,0.4,-0.3,0 edges=1,2,3,4,5,6,7",
    "policy position=-1 end=3 group=1 goes_on=0 fill=0 exact_turns=1 "
    "operations=random_flip,random_crop,random_resized_crop parameters=0,4,0 edges=1,2,3",
    "random_crop position=-1 padding=3 reflect=0",
    "random_crop position=-1 padding=2 reflect=1",
    "random_flip position=-1 mode=horizontal_and_vertical",
    "random_crop position=-1 padding=1 reflect=0 height=25 width=9 pad_if_needed=1",
    "cutout position=-1 side=5",
    "center_crop position=-1 height=21 width=8",
    "pad position=-1 left=3 top=0 right=5 bottom=2 mode=constant fill=0",
    "random_rotate90 position=-1",
    "random_transpose position=-1 below=2147483648",
    "random_rotation position=-1 degrees=-50,40",
    "random_perspective position=-1 below=2147483648 scale=0,0.5",
    "random_elastic position=-1 alpha_x=0,50 alpha_y=0,60 sigma_x=0,5 sigma_y=0,6 nearest=0 fill=0",
    "random_resized_crop position=-1 height=19 width=23 scale=0.2,1 ratio=0.7,1.4 antialias=1",
    "random_zoom_out position=-1 below=2147483648 sides=1,2 fill=0",
    "random_resize position=-1 short=9 number=20 antialias=1",
    "resize position=-1 height=31 width=17 antialias=0"};

NumberType Doubles() {
  return {[](double number) { return number; }, 0, 1e300};
}

NumberType Floats() {
  return {[](double number) { return static_cast<double>(static_cast<float>(number)); }, 1.2e-7, 3e38};
}

struct Drawn {
  LayerChain chain;
  ImageSize size;
  std::vector<int32_t> draws;
};

Drawn DrawChain(std::mt19937_64& random, size_t most) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < 1 + random() % most; ++i) texts.push_back(kMovers[random() % kMovers.size()]);
  absl::StatusOr<LayerChain> chain = LayerChain::Parse(texts);
  EXPECT_TRUE(chain.ok()) << chain.status();
  Drawn drawn = {*chain, {static_cast<int64_t>(6 + random() % 30), static_cast<int64_t>(6 + random() % 50)}, {}};
  drawn.draws.resize(chain->num_draws());
  chain->Draw(ImageSeed(static_cast<int32_t>(random()), 3), drawn.draws.data());
  return drawn;
}

// Each pixel of the moved mask shows where it comes from; the key point of that place must be at the pixel.
TEST(TargetsTest, KeyPointsMoveWithTheirPixels) {
  std::mt19937_64 random(1);
  int64_t compared = 0;
  for (int round = 0; round < 400; ++round) {
    Drawn drawn = DrawChain(random, 1);
    const ImageSize size = drawn.size;
    std::vector<int32_t> numbered(size.height * size.width);
    std::vector<double> points;
    for (size_t i = 0; i < numbered.size(); ++i) {
      numbered[i] = static_cast<int32_t>(i + 1);
      points.insert(points.end(), {static_cast<double>(i % size.width), static_cast<double>(i / size.width), 1.0});
    }
    MaskPoints mask(size, BestKernels());
    drawn.chain.Apply(drawn.draws.data(), &mask);
    const ImageSize made = mask.size();
    std::vector<int32_t> moved(made.height * made.width);
    mask.Move(reinterpret_cast<const uint8_t*>(numbered.data()), sizeof(int32_t),
              reinterpret_cast<uint8_t*>(moved.data()));
    KeyPoints key_points(false, Doubles(), size, static_cast<int64_t>(numbered.size()), 3, points.data());
    ASSERT_TRUE(key_points.Begin().ok());
    drawn.chain.Apply(drawn.draws.data(), &key_points);
    ASSERT_EQ(key_points.size().height, made.height);
    // A pixel of the source may become several pixels of the result, or a part of one.
    const double stretch_y = std::max(1.0, 5.0 * static_cast<double>(made.height) / static_cast<double>(size.height));
    const double stretch_x = std::max(1.0, 5.0 * static_cast<double>(made.width) / static_cast<double>(size.width));
    const bool reflects = drawn.chain.links()[0].name == "random_crop";
    for (size_t i = 0; i < moved.size(); ++i) {
      if (moved[i] == 0 || reflects) continue;
      const double* const point = points.data() + 3 * (moved[i] - 1);
      ASSERT_NEAR(point[0], static_cast<double>(static_cast<int64_t>(i) % made.width), stretch_x) << round;
      ASSERT_NEAR(point[1], static_cast<double>(static_cast<int64_t>(i) / made.width), stretch_y) << round;
      ++compared;
    }
    for (size_t i = 0; i < points.size(); i += 3) {
      const bool is_inside = points[i] >= -0.5 && points[i + 1] >= -0.5 &&
                             points[i] <= static_cast<double>(made.width) - 0.5 &&
                             points[i + 1] <= static_cast<double>(made.height) - 0.5;
      ASSERT_EQ(points[i + 2], is_inside ? 1 : 0);
    }
  }
  EXPECT_GT(compared, 10000);
}

TEST(TargetsTest, BoxesStayInTheImageAndKeepTheirOrder) {
  std::mt19937_64 random(2);
  const auto below = [&random](double end) { return end * static_cast<double>(random() % 1000) / 1000; };
  for (int round = 0; round < 400; ++round) {
    Drawn drawn = DrawChain(random, 4);
    const double height = static_cast<double>(drawn.size.height), width = static_cast<double>(drawn.size.width);
    std::vector<double> boxes;
    for (int i = 0; i < 5; ++i) {
      const double left = below(width), top = below(height);
      boxes.insert(boxes.end(), {left, top, left + below(width - left), top + below(height - top)});
    }
    boxes.insert(boxes.end(), {-1.0, -1.0, -1.0, -1.0});
    Boxes moved({TargetKind::Form::kCorners}, Doubles(), drawn.size, 6, boxes.data());
    ASSERT_TRUE(moved.Begin().ok());
    drawn.chain.Apply(drawn.draws.data(), &moved);
    EXPECT_TRUE(moved.fits());
    for (int i = 0; i < 20; i += 4) {
      const bool is_empty = boxes[i] == 0 && boxes[i + 1] == 0 && boxes[i + 2] == 0 && boxes[i + 3] == 0;
      ASSERT_TRUE(is_empty || (boxes[i] < boxes[i + 2] && boxes[i + 1] < boxes[i + 3])) << round;
      ASSERT_GE(std::min(boxes[i], boxes[i + 1]), 0);
      ASSERT_LE(boxes[i + 2], static_cast<double>(moved.size().width));
      ASSERT_LE(boxes[i + 3], static_cast<double>(moved.size().height));
    }
    EXPECT_EQ(boxes[20], -1);
  }
}

// `DrawFrom` moves boxes while layers draw from them. Applying the resulting draws to copies of the boxes must move
// these to the same places and make an image of the same size.
TEST(TargetsTest, DrawsMadeFromBoxesApplyToAllTargets) {
  std::mt19937_64 random(5);
  int crops = 0;
  for (int round = 0; round < 200; ++round) {
    const LayerChain chain = *LayerChain::Parse(
        {kMovers[random() % kMovers.size()],
         "random_choice position=-1 ends=2000000000,2147483648 layers0=random_iou_crop,~position=0,~scale=0.2,1,~"
         "ratio=0.5,2,~options=0,0.5,1,~trials=9 layers1=random_flip,~position=1"});
    std::vector<int32_t> draws(chain.num_draws());
    chain.Draw(ImageSeed(round, 3), draws.data());
    ASSERT_TRUE(chain.looks_at_boxes() && chain.CheckDraws(draws.data()).ok());
    std::vector<double> looked_at = {2, 3, 20, 22, -1, -1, -1, -1, 10, 1, 12, 9}, others = looked_at;
    Boxes boxes({TargetKind::Form::kCorners}, Doubles(), {24, 24}, 3, looked_at.data());
    ASSERT_TRUE(boxes.Begin().ok());
    chain.DrawFrom(&boxes, draws.data());
    Boxes same({TargetKind::Form::kCorners}, Doubles(), {24, 24}, 3, others.data());
    ASSERT_TRUE(same.Begin().ok());
    chain.Apply(draws.data(), &same);
    EXPECT_EQ(looked_at, others);
    EXPECT_EQ(boxes.size(), same.size());
    EXPECT_EQ(chain.Behind({{24, 24}, {ValueType::kUint8, 3}}, draws.data())->size, boxes.size());
    crops += draws[chain.links()[1].first_draw + 5] > 0;
  }
  EXPECT_GT(crops, 40);
}

TEST(TargetsTest, StoringBoxesBetweenLayersChangesNothing) {
  std::mt19937_64 random(3);
  for (const char* const name : {"xywh", "rel_center_xywh", "center_yxhw", "rel_yxyx"}) {
    const TargetKind kind = *TargetKind::Named(name);
    for (int round = 0; round < 200; ++round) {
      Drawn drawn = DrawChain(random, 4);
      std::vector<double> whole(8);
      for (double& number : whole) number = static_cast<double>(static_cast<float>(random() % 100) / 400);
      if (kind.form == TargetKind::Form::kCorners) {
        for (int i : {2, 3, 6, 7}) whole[i] += 0.5;
      } else if (kind.form == TargetKind::Form::kCenterAndSize) {
        for (int i : {0, 1, 4, 5}) whole[i] += kind.is_relative ? 0.3 : 3;
      }
      std::vector<double> split = whole;
      Boxes at_once(kind, Floats(), drawn.size, 2, whole.data());
      ASSERT_TRUE(at_once.Begin().ok());
      drawn.chain.Apply(drawn.draws.data(), &at_once);
      ImageSize size = drawn.size;
      const int32_t* draws = drawn.draws.data();
      for (const LayerChain::Link& link : drawn.chain.links()) {
        Boxes step(kind, Floats(), size, 2, split.data());
        ASSERT_TRUE(step.Begin().ok()) << name << step.Begin();
        link.layer->Apply(draws, &step);
        draws += link.layer->num_draws();
        size = step.size();
      }
      ASSERT_EQ(split, whole) << name << ", round " << round;
    }
  }
}

// A blended map of ones stays between 0 and 1. Nearly everywhere it is above 1/2 where the nearest-pixel mask is set.
TEST(TargetsTest, BlendedMapsAgreeWithMasks) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; ++round) {
    Drawn drawn = DrawChain(random, 3);
    const int64_t pixels = drawn.size.height * drawn.size.width;
    MaskPoints mask(drawn.size, BestKernels());
    drawn.chain.Apply(drawn.draws.data(), &mask);
    std::vector<uint8_t> moved(mask.size().height * mask.size().width);
    mask.Move(std::vector<uint8_t>(pixels, 1).data(), 1, moved.data());
    BlendedMap<float> map(TargetKind::Form::kBlendedMap, drawn.size, 2, 3, std::vector<float>(6 * pixels, 1.0f),
                          [](float value) { return value; });
    drawn.chain.Apply(drawn.draws.data(), &map);
    ASSERT_EQ(map.size().width, mask.size().width);
    ASSERT_EQ(map.values().size(), 6 * moved.size());
    int64_t differing = 0;
    for (size_t i = 0; i < map.values().size(); ++i) {
      const float value = map.values()[i];
      ASSERT_GE(value, 0);
      ASSERT_LE(value, 1.0001f);
      differing += (value > 0.5f) != (moved[i / 2 % moved.size()] == 1);
    }
    // They differ at the edges of areas that an earlier distortion left empty.
    EXPECT_LT(differing, static_cast<int64_t>(map.values().size() / 5 + 60)) << round;
  }
}

// Given the draws of a smaller image, an image k times as large becomes k times as large as the smaller one's result.
TEST(TargetsTest, LargerImagesKeepTheirSizeRatioToSmallerOnes) {
  std::mt19937_64 random(5);
  int followed = 0;
  for (int round = 0; round < 300; ++round) {
    Drawn drawn = DrawChain(random, 3);
    const int64_t times = 2 + round % 2;
    const Pixel pixel = {ValueType::kUint8, 3};
    // Some images are too small for their layers, or not square as a rotation by 90 degrees requires.
    if (!drawn.chain.Behind({drawn.size, pixel}, drawn.draws.data()).ok()) continue;
    MaskPoints mask(drawn.size, BestKernels());
    drawn.chain.Apply(drawn.draws.data(), &mask);
    const ImageSize made = {mask.size().height * times, mask.size().width * times};
    const absl::StatusOr<ImageSpec> behind =
        drawn.chain.BehindFollower({drawn.size, pixel}, pixel, times, drawn.draws.data());
    ASSERT_TRUE(behind.ok() && behind->size == made) << behind.status();
    const ImageSize size = {drawn.size.height * times, drawn.size.width * times};
    std::vector<uint8_t> image(size.height * size.width * 3), plain(made.height * made.width * 3), best(plain.size());
    for (uint8_t& value : image) value = static_cast<uint8_t>(random());
    Painter(drawn.chain, size, pixel, PlainKernels(), times).Paint(image.data(), drawn.draws.data(), plain.data());
    Painter(drawn.chain, size, pixel, BestKernels(), times)
        .PaintBy([&](Canvas* canvas) { drawn.chain.Apply(drawn.draws.data(), canvas); }, image.data(), best.data());
    ASSERT_EQ(plain, best) << round;
    ++followed;
  }
  EXPECT_GT(followed, 100);
}

TEST(TargetsTest, KindsAreParsedFromTheirNames) {
  EXPECT_TRUE(TargetKind::Named("rel_center_xywh")->is_boxes());
  EXPECT_TRUE(TargetKind::Named("bilinear")->is_map());
  EXPECT_FALSE(TargetKind::Named("unnamed")->is_boxes());
  EXPECT_FALSE(TargetKind::Named("xyx").ok());
}

}  // namespace
}  // namespace refurbish_tf
