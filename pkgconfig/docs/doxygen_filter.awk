# doxygen_filter.awk - the plain comments of rope.h as Doxygen reads them: awk -f doxygen_filter.awk rope.h
#
# The header is a manual in plain text, without markup. Its layout replaces markup: lines indented further than their
# paragraph are a formula, a diagram or a program and are kept as they are; a banner begins a group of declarations.

function spaces(text) {
  match(text, /^ */)
  return RLENGTH
}

function end_block() {
  if (block) print "@endverbatim"
  block = 0
}

# One line of a comment without its markers; `column` is the column of its first text in the file.
function comment_line(text, is_last,   indent, here) {
  sub(/ *$/, "", text)
  indent = spaces(text)
  here = substr(text, indent + 1)
  if (here == "") {
    end_block()
    item = -1
    was_blank = 1
  } else if (here ~ /^(-|[0-9]+\.) /) {
    end_block()
    item = indent + index(here, " ")
  } else if (is_file_comment && indent == 0 && was_blank && here !~ /[:.]/) {
    # A heading: the lines after it are indented by two.
    end_block()
    item = -1
    text = "@par " here
  } else if (indent < item || item < 0) {
    item = -1
    if (indent >= (is_file_comment ? 5 : 2)) {
      if (!block) {
        print "@verbatim"
        block = indent
      }
      text = substr(text, (indent < block ? indent : block) + 1)
    } else {
      end_block()
      if (indent < previous || here ~ /^[A-Z]+_[A-Z]+: /) print "" # a status and when it is returned
      text = here
    }
    previous = indent
  }
  if (here != "") was_blank = 0
  print text
  if (is_last) {
    end_block()
    print " */"
    in_comment = 0
    documented = NR
  }
}

# From the first line of a comment that has its text in this column.
function begin_comment(opening, text,   is_last) {
  print opening
  in_comment = 1
  item = -1
  previous = 0
  was_blank = 0
  is_last = sub(/ *\*\/ *$/, "", text)
  comment_line(text, is_last)
}

in_comment {
  text = $0
  is_last = sub(/ *\*\/ *$/, "", text)
  if (text ~ /^ *\*( |$)/) {
    sub(/^ *\* ?/, "", text)
  } else {
    text = substr(text, column)
  }
  comment_line(text, is_last)
  next
}

NR == 1 {
  is_file_comment = 1
  print "/** @file\nThe whole interface. What all of it has in common is @ref index \"the main page\". */"
  begin_comment("/** @mainpage " $2, substr($0, 4))
  next
}
{ is_file_comment = 0 }

/^\/\* ---- .* -+ \*\/$/ {
  sub(/^\/\* -+ /, "")
  sub(/ -+ \*\/$/, "")
  if (in_group) print "/** @} */"
  print "/** @name " $0 "\n * @{ */"
  in_group = 1
  next
}

/^ *\/\* / {
  column = index($0, "/*") + 3
  begin_comment("/**", substr($0, column))
  next
}

# One declaration of several fields, documented by the comment before or after it: the other fields refer to it.
function fields(text, comment_first,   type_and_names, names, count, i, chosen) {
  sub(/;.*/, "", text)
  sub(/^ */, "", text)
  type_and_names = text
  sub(/ .*/, "", type_and_names)
  sub(/^[^ ]+ /, "", text)
  count = split(text, names, /, /)
  chosen = comment_first ? 1 : count
  for (i = 1; i <= count; ++i) {
    printf "  %s %s;", type_and_names, names[i]
    if (i != chosen) printf " /**< As %s. */", names[chosen]
    if (i < count) print ""
  }
}
/^  [a-z_]+ [a-z_]+, [a-z_, ]+;/ {
  behind = index($0, "/*")
  fields($0, !behind)
  if (!behind) {
    print ""
    next
  }
  # The rest is the comment.
  column = behind + 3
  begin_comment(" /**<", substr($0, column))
  next
}

/^[^\/].* \/\* / && !/^#/ {
  column = index($0, "/*") + 3
  begin_comment(substr($0, 1, column - 4) "/**<", substr($0, column))
  next
}

# A macro directly after another one has the same comment.
/^#define ROPE_VERSION/ {
  if (macro != "") print "/** As #" macro ". */"
  else macro = $2
}
/^$/ { macro = "" }

# A value with a self-explanatory name.
/^  ROPE_[A-Z0-9_]+ = [0-9]+,?$/ && documented < NR - 1 {
  value = $3
  sub(/,/, "", value)
  $0 = $0 " /**< " value " */"
}

# The enumerators of the preceding type.
/^enum \{$/ && type != "" { print "/** Values of " type ". */" }
{ type = "" }
/^typedef int32_t / {
  type = $3
  sub(/;/, "", type)
}

/^#ifdef __cplusplus$/ && in_group { print "/** @} */" }
{ print }
