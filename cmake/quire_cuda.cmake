# Decides whether this build has CUDA kernels (QUIRE_CUDA_BUILT) and says how they are compiled.
# Real code for the cards we know, PTX of the newest for cards to come. While developing, one architecture is
# much quicker: -DQUIRE_CUDA_ARCHITECTURES=90a.
set(QUIRE_CUDA_ARCHITECTURES "80;86;89;90a;120a" CACHE STRING "CUDA architectures to generate code for; the last of several also as PTX")

# "native": for the GPUs of this machine alone.
if(QUIRE_CUDA_ARCHITECTURES STREQUAL "native")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE found ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]+" found "${found}")
  list(TRANSFORM found REPLACE "\\." "")
  list(TRANSFORM found REPLACE "^(90|120)$" "\\1a")
  list(REMOVE_DUPLICATES found)
  if(found)
    set(QUIRE_CUDA_ARCHITECTURES ${found})
  else()
    set(QUIRE_CUDA_ARCHITECTURES "80;86;89;90a;120a")
  endif()
  message(STATUS "CUDA kernels for ${QUIRE_CUDA_ARCHITECTURES}")
endif()

set(QUIRE_CUDA_BUILT OFF)
if(NOT QUIRE_CUDA STREQUAL "OFF")
  find_program(QUIRE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  # A driver cannot be linked statically, and sanitizers do not get along with what it maps.
  set(unsuitable "")
  if(CMAKE_CROSSCOMPILING OR QUIRE_STATIC OR QUIRE_SANITIZE OR QUIRE_FUZZ)
    set(unsuitable "a cross, static, sanitizer or fuzz build has no CUDA")
  elseif(NOT QUIRE_NVCC)
    set(unsuitable "nvcc was not found; name it with -DQUIRE_NVCC=/path/to/nvcc")
  else()
    # Older ones know neither C++20 with Debian 12's compiler nor the newest of our architectures.
    execute_process(COMMAND ${QUIRE_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
    string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" version "${version}")
    if(NOT CMAKE_MATCH_1 OR CMAKE_MATCH_1 VERSION_LESS 12.8)
      set(unsuitable "${QUIRE_NVCC} is not of CUDA 12.8 or later")
    endif()
  endif()
  if(NOT unsuitable)
    set(QUIRE_CUDA_BUILT ON)
  elseif(QUIRE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "QUIRE_CUDA=ON, but ${unsuitable}.")
  else()
    message(STATUS "CUDA kernels are left out: ${unsuitable}.")
  endif()
endif()

if(QUIRE_CUDA_BUILT)
  set(CMAKE_CUDA_COMPILER ${QUIRE_NVCC})
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  set(CMAKE_CUDA_ARCHITECTURES OFF)  # quire_cuda_options says it, because CMake 3.25 does not know "120a"
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # Nor does it know that nvcc speaks C++20, which CMAKE_CXX_STANDARD asks of CUDA too.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
  find_package(CUDAToolkit REQUIRED)
endif()

# quire_cuda_options(TARGET [ARCHITECTURES ...]): for all of them, or those named. Warnings are errors on both sides, and a
# kernel that spills registers is a warning where there is one architecture: what it was written for.
function(quire_cuda_options target)
  cmake_parse_arguments(CUDA "" "" "ARCHITECTURES" ${ARGN})
  if(NOT CUDA_ARCHITECTURES)
    set(CUDA_ARCHITECTURES ${QUIRE_CUDA_ARCHITECTURES})
  endif()
  set(codes "")
  foreach(architecture ${CUDA_ARCHITECTURES})
    list(APPEND codes "SHELL:-gencode arch=compute_${architecture},code=sm_${architecture}")
    string(REGEX REPLACE "[af]$" "" newest ${architecture})
  endforeach()
  # PTX with an architecture's own instructions would run on that one alone.
  list(LENGTH CUDA_ARCHITECTURES count)
  if(count GREATER 1)
    list(APPEND codes "SHELL:-gencode arch=compute_${newest},code=compute_${newest}")
  endif()
  set(spills "")
  if(count EQUAL 1)
    set(spills "SHELL:-Xptxas -warn-spills")
  endif()
  set(options ${codes} "SHELL:-Werror all-warnings" ${spills}
              "SHELL:-Xcompiler -Wall,-Wextra,-Werror,-ffp-contract=off,-fno-math-errno" -fmad=false --expt-relaxed-constexpr)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${options}>")
endfunction()
