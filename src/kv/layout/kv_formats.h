#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/layout/kv_layout.h"

namespace quire {

struct KvFormatPair {
  KvFormat key = KvFormat::f16, value = KvFormat::f16;
  bool operator==(const KvFormatPair&) const = default;
};

// In what format each layer of a model keeps its keys and values: one for all, and others for layers that are named.
class KvFormats {
 public:
  KvFormats(KvFormat both = KvFormat::f16) : rest_{both, both} {}
  KvFormats(KvFormat key, KvFormat value) : rest_{key, value} {}

  // Parts with commas between them; the layers of a part stand before a colon, and a part without any is about all others:
  //
  //   int8                            k=int8,v=q4
  //   int8,0-1:f16                    the first two layers in f16, the others in int8
  //   q4,0:int8,last:k=f16,v=int8     v= goes on with the layers of k=
  //
  // Layers are a number from 0 on, `last`, or two of these with a dash between. What a part does not say stays as it is for
  // all others. Throws Error with a sentence.
  static KvFormats parse(std::string_view text);

  // By layer. Throws Error if a part names a layer that is not there, or two parts name the same.
  std::vector<KvFormatPair> of_layers(size_t layers) const;
  // Of those that are not named; of a draft model that has layers of its own.
  KvFormatPair rest() const { return rest_; }
  // If all layers have the same for keys and values.
  std::optional<KvFormat> only() const;

 private:
  static constexpr uint32_t kLast = UINT32_MAX;
  struct Part {
    uint32_t first = 0, last = 0;
    std::optional<KvFormat> key = {}, value = {};
  };
  static uint32_t parse_layer(std::string_view text);
  static Part parse_layers(std::string_view text);

  KvFormatPair rest_;
  std::vector<Part> parts_;
};

std::string name(const KvFormatPair& formats);
// What parse() would make these layers of.
std::string describe_formats(const std::vector<KvFormatPair>& layers);

}  // namespace quire
