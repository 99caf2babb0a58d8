#pragma once

#include <cstddef>
#include <utility>

namespace quire {

// So many bytes for all connections together. Belongs to one thread, and must outlive its shares.
class ByteBudget {
 public:
  explicit ByteBudget(size_t bytes) : bytes_(bytes) {}
  // Whoever is alone gets what it wants: else nobody could ever have something that is larger than all.
  bool has_room(size_t bytes) const {
    return in_use_ == 0 || (in_use_ < bytes_ && bytes <= bytes_ - in_use_);
  }

  // What one of them holds; it gives it back at its end.
  class Share {
   public:
    explicit Share(ByteBudget& budget) : budget_(&budget) {}
    Share(Share&& other) noexcept : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() { release(); }

    size_t bytes() const { return bytes_; }
    // From now on it holds so many. False: there is no room for more, and nothing has changed.
    [[nodiscard]] bool grow_to(size_t bytes) {
      if (bytes <= bytes_) return true;
      const bool alone = budget_->in_use_ == bytes_;
      if (!alone && !budget_->has_room(bytes - bytes_)) return false;
      budget_->in_use_ += bytes - bytes_;
      bytes_ = bytes;
      return true;
    }
    void release() { budget_->in_use_ -= std::exchange(bytes_, 0); }

   private:
    ByteBudget* budget_;
    size_t bytes_ = 0;
  };

 private:
  size_t bytes_;
  size_t in_use_ = 0;
};

}  // namespace quire
