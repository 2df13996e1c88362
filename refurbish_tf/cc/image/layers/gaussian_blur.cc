// Blurs the image with a Gaussian of random width.
#include <algorithm>
#include <array>
#include <cmath>

#include "refurbish_tf/cc/image/layer.h"

namespace refurbish_tf {
namespace {

class GaussianBlur : public Layer {
 public:
  static constexpr int64_t kMaxKernel = 1023;

  explicit GaussianBlur(Arguments& arguments)
      : sigma_(arguments.Range("sigma")),
        kernel_(arguments.Integer("kernel", 0, kMaxKernel)) {
    if (kernel_ == 0 && sigma_[1] > kMaxKernel / 6) {
      arguments.Fail("sigma is too large without a kernel");
    }
  }

  int num_draws() const override { return 1; }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    draws[0] = seed.Fraction(1);
  }
  Movement movement() const override { return Movement::kNone; }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_RETURN_IF_ERROR(CheckType(image));
    return image;
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    const double sigma = Between(sigma_, draws[0]);
    // A given kernel is cut off at 5 sigma: the weights beyond add up to less
    // than a millionth. Otherwise it ends at 3 sigma, enough for bytes.
    const int64_t reach =
        static_cast<int64_t>(std::ceil((kernel_ > 0 ? 5 : 3) * sigma));
    canvas->Blur({sigma, kernel_ > 0 ? std::min(kernel_ / 2, reach) : reach});
  }

 private:
  const std::array<double, 2> sigma_;
  // The side of the kernel; 0 if sigma determines it.
  const int64_t kernel_;
};

const LayerType<GaussianBlur> kGaussianBlur("gaussian_blur");

}  // namespace
}  // namespace refurbish_tf
