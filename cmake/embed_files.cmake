# Writes OUTPUT, a C++ file that holds the bytes of FILES (a list) as quire::find_web_file finds them.
#   cmake -DOUTPUT=... "-DFILES=a;b" -P embed_files.cmake
set(arrays "")
set(entries "")
set(number 0)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  get_filename_component(extension ${file} LAST_EXT)
  if(extension STREQUAL ".html")
    set(type "text/html; charset=utf-8")
  elseif(extension STREQUAL ".css")
    set(type "text/css; charset=utf-8")
  elseif(extension STREQUAL ".js")
    set(type "text/javascript; charset=utf-8")
  elseif(extension STREQUAL ".svg")
    set(type "image/svg+xml")
  else()
    set(type "application/json")
  endif()
  file(READ ${file} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {${bytes}0};\n")
  string(APPEND entries "    {\"${name}\", \"${type}\", {reinterpret_cast<const char*>(kFile${number}), ${size}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include \"server/web_files.h\"

namespace quire {
namespace {

${arrays}
}  // namespace

const WebFile* find_web_file(std::string_view name) {
  static const WebFile files[] = {
${entries}  };
  for (const WebFile& file : files) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

}  // namespace quire
")
