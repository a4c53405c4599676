"""Pieces of text as it comes: words, emoji, combining marks, right to left, Thai, Chinese, CRLF."""

PIECES = [
    "pump ",
    "valve\n",
    "\n\n",
    "  ",
    "\r\n",
    "🙂",
    "e\u0301",
    "שלום ",
    "ปั๊มน้ำ",
    "离心泵",
    "a" * 50,
    "1.2.3 ",
    "\u200b",
    "\t",
    "x",
]
