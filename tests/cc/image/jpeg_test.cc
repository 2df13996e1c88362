// Reading the header of a JPEG file, choosing the part and scale to decode, and resizing a window of that part.
#include "refurbish_tf/cc/image/jpeg.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/image/image_file.h"
#include "refurbish_tf/cc/image/resize.h"
#include "refurbish_tf/cc/image/vector_kernels.h"

namespace refurbish_tf {
namespace {

const std::string kStart = "\xff\xd8";
const std::string kFrame = std::string("\xff\xc0\0\x11\x08\x01\x2c\x01\x90\x03", 10) + std::string(9, '\1');

std::string Segment(char marker, size_t length) {
  return std::string{'\xff', marker, static_cast<char>(length >> 8), static_cast<char>(length)} +
         std::string(length - 2, '\xc0');
}

TEST(JpegHeaderTest, IsFoundAfterOtherSegments) {
  // Several markers can begin a frame. In their range, c4, c8 and cc begin other segments.
  for (const std::string& before :
       {std::string(), Segment('\xe0', 16), Segment('\xe1', 5000) + Segment('\xdb', 67), Segment('\xc4', 30),
        Segment('\xc8', 30), Segment('\xcc', 30), std::string("\xff\xff\xff"), std::string("\xff\x01\xff\xd0"),
        std::string("rubbish"), Segment('\xfe', 2)}) {
    for (const char marker : {'\xc0', '\xc1', '\xc2', '\xc9'}) {
      std::string frame = kFrame;
      frame[1] = marker;
      const std::string file = kStart + Segment('\xe0', 16) + before + frame;
      const ImageFile read = ReadImageFile(file);
      EXPECT_EQ(read.size.height, 300);
      EXPECT_EQ(read.size.width, 400);
      EXPECT_EQ(read.components, 3);
    }
  }
}

TEST(JpegHeaderTest, IsNotFoundInInvalidFiles) {
  const std::string whole = kStart + Segment('\xe0', 16) + kFrame;
  for (size_t length = 0; length < whole.size() - 9; ++length) {
    // A block of exactly this length, so that the sanitizer reports reads beyond it.
    const std::unique_ptr<char[]> file(new char[length]);
    std::copy_n(whole.data(), length, file.get());
    EXPECT_EQ(ReadImageFile({file.get(), length}).size.height, 0) << length;
  }
  std::string empty = kFrame;
  empty[5] = empty[6] = 0;
  EXPECT_EQ(ReadImageFile(kStart + empty).size.height, 0);
  EXPECT_EQ(ReadImageFile("\x89PNG" + whole).size.height, 0);
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string noise = whole;
    for (int i = 0; i < 4; ++i) noise[2 + random() % (noise.size() - 2)] = static_cast<char>(random());
    noise.resize(random() % (noise.size() + 1));
    const std::unique_ptr<char[]> file(new char[noise.size()]);
    std::copy(noise.begin(), noise.end(), file.get());
    ReadImageFile({file.get(), noise.size()});
  }
}

TEST(ScaledPartTest, IsTheSmallestWithEnoughPixels) {
  for (const auto& [height, width, ratio] : {std::tuple{447, 1000, 1},
                                             {1000, 447, 1},
                                             {448, 448, 2},
                                             {895, 2000, 2},
                                             {896, 896, 4},
                                             {2687, 9000, 4},
                                             {2688, 2688, 8},
                                             {60000, 60000, 8},
                                             {1, 1, 1}}) {
    EXPECT_EQ(ScaledPartOf({5, 6, height, width}, {224, 224}).ratio, ratio) << height << " x " << width;
  }
}

TEST(ScaledPartTest, CoversExactlyTheBox) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 3000; ++round) {
    const Box box = {static_cast<int64_t>(random() % 50), static_cast<int64_t>(random() % 50),
                     static_cast<int64_t>(1 + random() % 90), static_cast<int64_t>(1 + random() % 90)};
    const ScaledPart part = ScaledPartOf(box, {static_cast<int64_t>(1 + random() % 9), 3});
    const int64_t image_height = box.y + box.height, image_width = box.x + box.width;
    for (const auto& [begin, length, scaled, size, exact, exact_size, side] :
         {std::tuple{box.y, box.height, part.box.y, part.box.height, part.window.y, part.window.height, image_height},
          {box.x, box.width, part.box.x, part.box.width, part.window.x, part.window.width, image_width}}) {
      EXPECT_EQ((scaled + exact) * part.ratio, begin);
      EXPECT_EQ(exact_size * part.ratio, length);
      // The part has all pixels of the image that the box touches, and no others.
      EXPECT_TRUE(exact >= 0 && exact < 1 && size - (exact + exact_size) >= 0 && size - (exact + exact_size) < 1);
      EXPECT_LE(scaled + size, (side + part.ratio - 1) / part.ratio);
    }
  }
}

TEST(ResizerTest, ResizesASubpixelWindow) {
  // A resized ramp is the ramp itself, except at its ends.
  const int64_t side = 40;
  std::vector<uint8_t> image(side * side * 3);
  for (int64_t y = 0; y < side; ++y) {
    for (int64_t x = 0; x < side; ++x) {
      image[(y * side + x) * 3] = static_cast<uint8_t>(6 * y);
      image[(y * side + x) * 3 + 1] = static_cast<uint8_t>(6 * x);
    }
  }
  const Box box = {2, 3, 31, 27};
  const ImageSize size = {9, 11};
  for (const double begin : {0.0, 0.25, 0.625}) {
    const ResizeWindow window = {begin, begin / 2, 30.125, 26.5};
    std::vector<uint8_t> plain(size.height * size.width * 3), best(plain.size());
    for (const auto& [kernels, to] : {std::pair{&PlainKernels(), &plain}, {&BestKernels(), &best}}) {
      const auto resizer = MakeResizer({image.data(), side, {ValueType::kUint8, 3}}, box, window, size, true, *kernels);
      // An odd number of rows, then the rest.
      resizer->Rows(0, 5, to->data());
      resizer->Rows(5, 4, to->data() + 5 * size.width * 3);
    }
    ASSERT_EQ(plain, best);
    for (int64_t y = 1; y + 1 < size.height; ++y) {
      for (int64_t x = 1; x + 1 < size.width; ++x) {
        const double from_y = box.y + begin + (y + 0.5) * window.height / size.height - 0.5;
        const double from_x = box.x + begin / 2 + (x + 0.5) * window.width / size.width - 0.5;
        ASSERT_NEAR(plain[(y * size.width + x) * 3], 6 * from_y, 0.6);
        ASSERT_NEAR(plain[(y * size.width + x) * 3 + 1], 6 * from_x, 0.6);
      }
    }
  }
}

}  // namespace
}  // namespace refurbish_tf
