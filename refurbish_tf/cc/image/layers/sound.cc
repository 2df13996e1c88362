// Layers of sound, an image whose rows are moments: `time_mask` and
// `frequency_mask` fill random strips, `time_shift` moves it in time.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "absl/base/casts.h"
#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class SoundLayer : public Layer {
 public:
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    const ValueType type = image.pixel.type;
    const bool is_other = type != ValueType::kFloat32;
    if (value_ != 0 && is_other && type != ValueType::kUnknown) {
      return InvalidArgument("be float32 for fills other than 0, got dtype ",
                             NameOf(type), ". Cast it to tf.float32 first");
    }
    // More channels are probably the frequencies of a batch.
    if (image.pixel.channels <= 8) return image;
    return InvalidArgument(
        "have at most 8 channels, got ", image.pixel.channels,
        ". Add a channel axis to a batch: spectrograms[..., tf.newaxis]");
  }

 protected:
  explicit SoundLayer(Arguments& arguments) {
    if (!arguments.Has("value")) return;
    value_ = static_cast<float>(arguments.Numbers("value")[0]);
  }
  FillColor ColorFor(Canvas* canvas) const {
    return absl::bit_cast<FillColor>(value_ ? *value_ : canvas->Mean());
  }

 private:
  std::optional<float> value_;  // Without it, the mean.
};

class AxisMask : public SoundLayer {
 public:
  explicit AxisMask(Arguments& arguments)
      : SoundLayer(arguments),
        is_of_time_(arguments.name() == "time_mask"),
        number_(static_cast<int>(arguments.Integer("number", 1, 64))),
        widest_(arguments.Integer("widest", 0, kEndOfFraction)),
        part_(arguments.Range("part", 0, 1)[1]) {}

  int num_draws() const override { return 2 * number_; }
  Movement movement() const override { return Movement::kNone; }
  // As torchaudio's `mask_along_axis`, for the same random numbers.
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const auto [height, width] = canvas->size();
    const int64_t side = is_of_time_ ? height : width;
    const int64_t most = part_ == 1 ? widest_ : PixelsOf(side, part_);
    const FillColor color = ColorFor(canvas);
    for (int i = 0; i < number_; ++i, draws += 2) {
      const double drawn = std::min(widest_, most) * UnitOf(draws[0]);
      const int64_t length = drawn, begin = UnitOf(draws[1]) * (side - drawn);
      canvas->CutOut(is_of_time_ ? Box{begin, 0, length, width}
                                 : Box{0, begin, height, length},
                     color);
    }
  }

 private:
  const bool is_of_time_;
  const int number_;
  const int64_t widest_;
  const double part_;  // Of the axis.
};

class TimeShift : public SoundLayer {
 public:
  explicit TimeShift(Arguments& arguments)
      : SoundLayer(arguments),
        shift_(arguments.Range("shift", -1, 1)),
        rolls_over_(arguments.Boolean("rollover")) {}

  int num_draws() const override { return 1; }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const auto [height, width] = canvas->size();
    const int64_t by = std::llrint(Between(shift_, draws[0]) * height);
    canvas->Crop({-by, 0, height, width},
                 rolls_over_ ? Border::kRollOver : Border::kEmpty,
                 ColorFor(canvas));
  }

 private:
  const std::array<double, 2> shift_;
  const bool rolls_over_;
};

const LayerType<AxisMask> kTimeMask("time_mask");
const LayerType<AxisMask> kFrequencyMask("frequency_mask");
const LayerType<TimeShift> kTimeShift("time_shift");

}  // namespace
}  // namespace refurbish_tf
