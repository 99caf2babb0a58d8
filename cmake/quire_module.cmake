# quire_module(NAME LINKS ... APART ... WITHOUT ... EACH_ALONE NEVER_HOT): one library target for a folder of src/, and one test program from its *_test.cc.
# A folder sees only what it links: this is what keeps the dependencies pointing down. APART: see quire_unity,
# which is not for EACH_ALONE: kernels, whose speed must not depend on what is compiled beside them.
# WITHOUT: folders inside that are libraries of their own. NEVER_HOT: nobody waits for it as long as for its compiler.
function(quire_module name)
  cmake_parse_arguments(MODULE "EACH_ALONE;NEVER_HOT" "" "LINKS;APART;WITHOUT" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  foreach(folder ${MODULE_WITHOUT})
    list(FILTER sources EXCLUDE REGEX "^${CMAKE_CURRENT_SOURCE_DIR}/${folder}/")
  endforeach()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  add_library(quire_${name} STATIC ${sources})
  target_include_directories(quire_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(quire_${name} PUBLIC ${MODULE_LINKS})
  if(MODULE_NEVER_HOT)
    target_compile_options(quire_${name} PRIVATE -O1)
  endif()
  if(NOT MODULE_EACH_ALONE)
    quire_unity(quire_${name} APART ${MODULE_APART})
  endif()
  if(QUIRE_TESTS AND tests)
    quire_test(${name}_test SOURCES ${tests} LINKS quire_${name})
  endif()
  if(QUIRE_FUZZ)
    quire_fuzzers(quire_${name})
  endif()
endfunction()

# quire_fuzzers(LIBRARY): a libFuzzer program for each *_fuzz.cc of the folder; the target `fuzzers` builds them all.
function(quire_fuzzers library)
  file(GLOB_RECURSE fuzzers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_fuzz.cc)
  foreach(fuzzer ${fuzzers})
    get_filename_component(target ${fuzzer} NAME_WE)
    add_executable(${target} ${fuzzer})
    target_link_libraries(${target} PRIVATE ${library})
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    add_dependencies(fuzzers ${target})
  endforeach()
endfunction()

# quire_test(NAME SOURCES ... LINKS ...): a GoogleTest program whose every test is a ctest of its own.
function(quire_test name)
  cmake_parse_arguments(TEST "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_LINKS} GTest::gtest_main GTest::gmock)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)  # tests wait for their compiler more than for themselves
  target_precompile_headers(${name} PRIVATE <gtest/gtest.h>)
  target_compile_definitions(${name} PRIVATE QUIRE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             QUIRE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  # FormatFiles only converts files, for tools/check_formats.py.
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 TEST_FILTER "-FormatFiles.*"
                       WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endfunction()

# quire_unity(TARGET APART ...): with QUIRE_UNITY the sources of a target are compiled twenty-eight at a time, because what they
# include (JSON, fmt, Asio) takes the compiler longer than what they say. APART: sources that stay alone, because their
# names meet others' or because they are long.
function(quire_unity target)
  cmake_parse_arguments(UNITY "" "" "APART" ${ARGN})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${QUIRE_UNITY} UNITY_BUILD_BATCH_SIZE 28)
  if(UNITY_APART)
    set_source_files_properties(${UNITY_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  if(QUIRE_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # it means headers that are included by several
  endif()
endfunction()
