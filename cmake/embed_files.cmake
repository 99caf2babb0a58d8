# Writes OUTPUT, a C++ file that holds the bytes of FILES (a list) as quire::find_web_file finds them, and of LIBRARIES,
# whose entries say what the page calls them: PATH|NAME. Those are large: the assembler takes them as they are.
#   cmake -DOUTPUT=... "-DFILES=a;b" "-DLIBRARIES=/usr/share/c.js|c.js" -P embed_files.cmake
function(type_of name)
  get_filename_component(extension ${name} LAST_EXT)
  if(extension STREQUAL ".html")
    set(type "text/html; charset=utf-8")
  elseif(extension STREQUAL ".css")
    set(type "text/css; charset=utf-8")
  elseif(extension STREQUAL ".js")
    set(type "text/javascript; charset=utf-8")
  elseif(extension STREQUAL ".svg")
    set(type "image/svg+xml")
  elseif(extension STREQUAL ".woff2")
    set(type "font/woff2")
  else()
    set(type "application/json")
  endif()
  set(type "${type}" PARENT_SCOPE)
endfunction()

set(arrays "")
set(entries "")
set(number 0)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  type_of(${name})
  file(READ ${file} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {${bytes}0};\n")
  string(APPEND entries "    {\"${name}\", \"${type}\", {reinterpret_cast<const char*>(kFile${number}), ${size}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
set(symbols "")
foreach(entry IN LISTS LIBRARIES)
  string(REGEX MATCH "^(.*)[|](.*)$" matched "${entry}")
  set(path "${CMAKE_MATCH_1}")
  set(name "${CMAKE_MATCH_2}")
  type_of(${name})
  file(SIZE ${path} size)
  file(SHA256 ${path} digest)  # so that other bytes are another source
  string(APPEND symbols "// ${digest}
asm(\".pushsection .rodata\\n.hidden quire_web_${number}\\n.globl quire_web_${number}\\nquire_web_${number}:\\n\"
    \".incbin \\\"${path}\\\"\\n.byte 0\\n.popsection\");
extern \"C\" const char quire_web_${number}[] __attribute__((visibility(\"hidden\")));\n")
  string(APPEND entries "    {\"${name}\", \"${type}\", {quire_web_${number}, ${size}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include \"server/web_files.h\"

${symbols}
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
