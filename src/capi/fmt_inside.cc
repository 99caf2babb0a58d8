// fmt's own code, which Debian has as a shared library alone: the library should need none beside it. It is compiled here as for a
// program that has nothing but fmt's headers, and what the other objects ask for is taken by its address, so that it is there for them.
#ifndef FMT_HEADER_ONLY  // where all are compiled with its headers alone
#define FMT_HEADER_ONLY
#endif
#include <cstdint>

#include <fmt/format.h>

namespace quire {
namespace {

struct AskedFor {
  std::string (*vformat)(fmt::string_view, fmt::format_args);
  decltype(&fmt::detail::assert_fail) assert_fail;
  decltype(&fmt::detail::throw_format_error) throw_format_error;
  bool (*is_printable)(uint32_t);
  decltype(&fmt::detail::thousands_sep_impl<char>) thousands_sep;
  decltype(&fmt::detail::decimal_point_impl<char>) decimal_point;
  decltype(&fmt::detail::dragonbox::to_decimal<float>) digits_of_float;
  decltype(&fmt::detail::dragonbox::to_decimal<double>) digits_of_double;
};

[[gnu::used]] const AskedFor asked_for = {&fmt::vformat,
                                          &fmt::detail::assert_fail,
                                          &fmt::detail::throw_format_error,
                                          &fmt::detail::is_printable,
                                          &fmt::detail::thousands_sep_impl<char>,
                                          &fmt::detail::decimal_point_impl<char>,
                                          &fmt::detail::dragonbox::to_decimal<float>,
                                          &fmt::detail::dragonbox::to_decimal<double>};

}  // namespace
}  // namespace quire
