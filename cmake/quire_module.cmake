# quire_module(NAME LINKS ...): one library target for a folder of src/, and one test program from its *_test.cc.
# A folder sees only what it links: this is what keeps the dependencies pointing down.
function(quire_module name)
  cmake_parse_arguments(MODULE "" "" "LINKS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  add_library(quire_${name} STATIC ${sources})
  target_include_directories(quire_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(quire_${name} PUBLIC ${MODULE_LINKS})
  if(QUIRE_TESTS AND tests)
    quire_test(${name}_test SOURCES ${tests} LINKS quire_${name})
  endif()
  if(QUIRE_FUZZ)
    quire_fuzzers(quire_${name})
  endif()
endfunction()

# quire_fuzzers(LIBRARY): a libFuzzer program for each *_fuzz.cc of the folder.
function(quire_fuzzers library)
  file(GLOB_RECURSE fuzzers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_fuzz.cc)
  foreach(fuzzer ${fuzzers})
    get_filename_component(target ${fuzzer} NAME_WE)
    add_executable(${target} ${fuzzer})
    target_link_libraries(${target} PRIVATE ${library})
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  endforeach()
endfunction()

# quire_test(NAME SOURCES ... LINKS ...): a GoogleTest program whose every test is a ctest of its own.
function(quire_test name)
  cmake_parse_arguments(TEST "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_LINKS} GTest::gtest_main GTest::gmock)
  target_compile_options(${name} PRIVATE -O1)  # tests wait for their compiler more than for themselves
  target_precompile_headers(${name} PRIVATE <gtest/gtest.h>)
  target_compile_definitions(${name} PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             QUIRE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
                       WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endfunction()
