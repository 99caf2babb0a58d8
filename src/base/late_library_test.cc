#include "base/late_library.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quire {
namespace {

#ifndef QUIRE_STATIC  // it opens none then

std::string what_is_thrown(auto&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(LateLibrary, GivesFunctionsByTheirNames) {
  const LateLibrary math("libm.so.6", "install libc6");
  EXPECT_EQ(math.function<double(double)>("fabs")(-3), 3);
}

TEST(LateLibrary, SaysWhatToDoWhereALibraryOrAFunctionIsMissing) {
  EXPECT_THAT(what_is_thrown([] { LateLibrary("libnosuchthing.so.7", "install libnosuchthing7"); }),
              testing::AllOf(testing::HasSubstr("libnosuchthing.so.7 cannot be opened"),
                             testing::EndsWith("install libnosuchthing7")));
  const LateLibrary math("libm.so.6", "install libc6");
  EXPECT_EQ(what_is_thrown([&] { math.function<void()>("no_such_function"); }),
            "libm.so.6 has no function no_such_function: install libc6");
}

#endif

}  // namespace
}  // namespace quire
