"""Old code pages: texts of 26 languages in the encodings that they were really written in."""

from __future__ import annotations

import random
import unicodedata
from collections import Counter

import pytest

from ragbench import load_corpus
from ragbench.ingest.charset import guess_encoding, misplaced

# one text a language, with the code pages it is met in
TEXTS = {
    "en": (
        (
            "The café’s menu says “crème brûlée” – it costs £7, naïve visitors pay more. The pump must be"
            " checked every week; the results are written down in the log book and signed by the shift"
            " leader."
        ),
        ["cp1252", "mac_roman", "cp850", "latin_1", "cp500", "cp437"],
    ),
    "de": (
        (
            "Die Prüfung der Pumpe erfolgt wöchentlich. Für größere Störungen gilt: Ventil schließen, Meldung"
            " an die Schichtführung, danach Überprüfung der Maßnahmen."
        ),
        ["cp1252", "cp850", "mac_roman", "latin_1", "cp437", "cp500", "cp1250"],
    ),
    "fr": (
        (
            "La vérification de la pompe a lieu chaque semaine. En cas d’arrêt, l’opérateur doit fermer la"
            " vanne où la pression a été mesurée, puis prévenir le chef d’équipe à côté."
        ),
        ["cp1252", "cp850", "mac_roman", "cp500"],
    ),
    "es": (
        (
            "La revisión de la bomba se hace cada semana. ¿Qué presión señala el manómetro? Según el año,"
            " también habrá más averías; mañana vendrá el técnico."
        ),
        ["cp1252", "cp850", "mac_roman", "latin_1", "cp500"],
    ),
    "pt": (
        (
            "A inspeção da bomba é feita todas as semanas. Não há razão para alteração da pressão; são"
            " necessárias duas pessoas e então a válvula é fechada."
        ),
        ["cp1252", "cp850", "mac_roman"],
    ),
    "sv": (
        (
            "Pumpen måste kontrolleras varje vecka. Om trycket är för högt ska ventilen stängas och ansvarig"
            " på avdelningen underrättas även på natten."
        ),
        ["cp1252", "cp850", "mac_roman", "cp500"],
    ),
    "pl": (
        (
            "Pompę należy sprawdzać co tydzień. Jeżeli ciśnienie jest zbyt wysokie, proszę zamknąć zawór i"
            " powiadomić kierownika zmiany, również w nocy. Łódź, żółć, źródło."
        ),
        ["cp1250", "iso8859_2", "cp852"],
    ),
    "cs": (
        (
            "Čerpadlo se musí kontrolovat každý týden. Pokud je tlak příliš vysoký, uzavřete ventil a"
            " uvědomte vedoucího směny, také v noci. Žluťoučký kůň úpěl ďábelské ódy."
        ),
        ["cp1250", "iso8859_2", "cp852"],
    ),
    "hu": (
        (
            "A szivattyút minden héten ellenőrizni kell. Ha a nyomás túl magas, zárja el a szelepet, és"
            " értesítse a műszakvezetőt éjszaka is. Az eredményeket írja be a naplóba, mert később szükség"
            " lesz rájuk."
        ),
        ["cp1250", "iso8859_2", "cp852"],
    ),
    "ro": (
        (
            "Pompa trebuie verificată în fiecare săptămână. Dacă presiunea este prea mare, închideţi"
            " robinetul şi anunţaţi şeful de tură, inclusiv noaptea. Rezultatele sînt scrise în registru şi"
            " semnate."
        ),
        ["cp1250", "iso8859_2", "cp852"],
    ),
    "ro16": (
        (
            "Pompa trebuie verificată în fiecare săptămână. Dacă presiunea este prea mare, închideți"
            " robinetul și anunțați șeful de tură, inclusiv noaptea. Rezultatele sunt scrise în registru și"
            " semnate."
        ),
        ["iso8859_16"],
    ),
    "hr": (
        (
            "Pumpu treba provjeravati svaki tjedan. Ako je tlak previsok, zatvorite ventil i obavijestite"
            " voditelja smjene, također noću. Rezultati se bilježe u dnevnik i potpisuju. Šišanje, žaba,"
            " čvor."
        ),
        ["cp1250", "iso8859_2"],
    ),
    "tr": (
        (
            "Pompanın her hafta kontrol edilmesi gerekir. Basınç çok yüksekse vanayı kapatın ve vardiya"
            " amirine haber verin; sonuçlar deftere yazılır ve imzalanır. Işık, gündüz, öğle, ağaç, şişe."
        ),
        ["cp1254", "iso8859_9", "cp857"],
    ),
    "ru": (
        (
            "Насос необходимо проверять каждую неделю. Если давление слишком высокое, закройте клапан и"
            " сообщите начальнику смены, в том числе ночью. Результаты записываются в журнал."
        ),
        ["cp1251", "koi8_r", "cp866", "mac_cyrillic", "iso8859_5", "cp855"],
    ),
    "uk": (
        (
            "Насос необхідно перевіряти щотижня. Якщо тиск занадто високий, закрийте клапан і повідомте"
            " начальника зміни, також уночі. Результати записують до журналу, їх підписує інженер."
        ),
        ["cp1251", "koi8_u"],
    ),
    "bg": (
        (
            "Помпата трябва да се проверява всяка седмица. Ако налягането е твърде високо, затворете клапана"
            " и уведомете началника на смяната, включително през нощта."
        ),
        ["cp1251", "iso8859_5"],
    ),
    "el": (
        (
            "Η αντλία πρέπει να ελέγχεται κάθε εβδομάδα. Αν η πίεση είναι πολύ υψηλή, κλείστε τη βαλβίδα και"
            " ενημερώστε τον υπεύθυνο της βάρδιας, ακόμη και τη νύχτα."
        ),
        ["cp1253", "iso8859_7"],
    ),
    "ar": (
        (
            "يجب فحص المضخة كل أسبوع. إذا كان الضغط مرتفعا جدا، أغلق الصمام وأبلغ رئيس الوردية، حتى في الليل."
            " تسجل النتائج في السجل ويوقع عليها المهندس المسؤول."
        ),
        ["cp1256", "iso8859_6"],
    ),
    "fa": (
        "پمپ بايد هر هفته بررسي شود. اگر فشار خيلي بالا باشد، شير را ببنديد و به سرپرست شيفت خبر دهيد.",
        ["cp1256"],
    ),
    "he": (
        (
            "יש לבדוק את המשאבה בכל שבוע. אם הלחץ גבוה מדי, סגרו את השסתום והודיעו לאחראי המשמרת, גם בלילה."
            " התוצאות נרשמות ביומן ונחתמות."
        ),
        ["cp1255", "iso8859_8"],
    ),
    "th": (
        (
            "ต้องตรวจสอบปั๊มทุกสัปดาห์ หากความดันสูงเกินไป ให้ปิดวาล์วและแจ้งหัวหน้ากะ แม้ในเวลากลางคืน"
            " ผลการตรวจจะถูกบันทึกลงในสมุดและลงนาม"
        ),
        ["cp874", "tis_620"],
    ),
    "lt": (
        (
            "Siurblį reikia tikrinti kiekvieną savaitę. Jei slėgis per aukštas, uždarykite vožtuvą ir"
            " praneškite pamainos vadovui, taip pat naktį. Rezultatai įrašomi į žurnalą."
        ),
        ["cp1257", "iso8859_13"],
    ),
    "ja": (
        (
            "ポンプは毎週点検しなければならない。圧力が高すぎる場合は、弁を閉めて当直の責任者に知らせること。"
            "結果は日誌に記録し、署名する。"
        ),
        ["cp932", "euc_jp", "iso2022_jp"],
    ),
    "zh": (
        "水泵必须每周检查一次。如果压力过高，应关闭阀门并通知值班负责人，夜间也是如此。结果记入日志并签字。",
        ["gb18030", "gbk"],
    ),
    "zht": (
        "水泵必須每週檢查一次。如果壓力過高，應關閉閥門並通知值班負責人，夜間也是如此。結果記入日誌並簽字。",
        ["big5"],
    ),
    "ko": (
        (
            "펌프는 매주 점검해야 한다. 압력이 너무 높으면 밸브를 닫고 당직 책임자에게 알려야 하며 밤에도"
            " 마찬가지이다. 결과는 일지에 기록하고 서명한다."
        ),
        ["euc_kr", "cp949"],
    ),
    "vi": (
        (
            "Máy bơm phải được kiểm tra mỗi tuần. Nếu áp suất quá cao, hãy đóng van và báo cho trưởng ca, kể"
            " cả ban đêm. Kết quả được ghi vào sổ và ký tên."
        ),
        ["cp1258"],
    ),
}


def vietnamese(text: str) -> str:
    "In cp1258 tones are characters of their own."
    marks = {
        c: "".join(m for m in unicodedata.normalize("NFD", c) if m in "\u0300\u0301\u0303\u0309\u0323")
        for c in set(text)
    }
    plain = {
        c: unicodedata.normalize(
            "NFC", "".join(p for p in unicodedata.normalize("NFD", c) if p not in marks[c])
        )
        for c in marks
    }
    return "".join(plain[c] + marks[c] for c in text)


def passage(language: str, text: str, words: int, rng: random.Random) -> str:
    "So many words in a row, of languages without spaces four characters a word."
    pieces, glue = (list(text), "") if language in ("ja", "zh", "zht", "th") else (text.split(), " ")
    length = words * 4 if glue == "" else words
    start = rng.randrange(max(1, len(pieces) - length))
    return glue.join(pieces[start : start + length])


def encoded(words: int, seed: int, times: int = 8) -> list[tuple[str, str, str, bytes]]:
    "Passages as (language, code page, text, bytes): those that are neither ASCII nor UTF-8."
    rng, out = random.Random(seed), []
    for language, (whole, pages) in TEXTS.items():
        whole = vietnamese(whole) if language == "vi" else whole
        for page in pages:
            for _ in range(times):
                text = passage(language, whole, words, rng)
                try:
                    data = text.encode(page)
                except UnicodeEncodeError:
                    continue
                try:
                    data.decode("utf-8")
                except UnicodeDecodeError:
                    out.append((language, page, text, data))
    return out


def reads(data: bytes, encoding: str, text: str) -> bool:
    return data.decode(encoding, "replace") == text


@pytest.mark.parametrize(("words", "right"), [(6, 0.9), (12, 0.95), (24, 0.93)])
def test_passages_are_read_or_named_as_uncertain(words: int, right: float) -> None:
    outcome, certain = Counter(), []
    for language, page, text, data in encoded(words, seed=words):
        guess = guess_encoding(data)
        ok = reads(data, guess.encoding, text)
        outcome[ok] += 1
        if not ok and not guess.alternatives:
            certain.append((language, page, guess.encoding, text))
    assert outcome[True] >= right * outcome.total(), outcome
    assert len(certain) <= 0.005 * outcome.total(), certain


@pytest.mark.parametrize("language", ["en", "de", "fr", "es", "pt", "sv"])
@pytest.mark.parametrize("words", [12, 24, 200])
def test_western_text_in_cp1252_is_always_read(language: str, words: int) -> None:
    text, rng = TEXTS[language][0], random.Random(1)
    for _ in range(20):
        some = passage(language, text, words, rng)
        data = some.encode("cp1252")
        if data.isascii():
            continue
        assert reads(data, guess_encoding(data).encoding, some), (guess_encoding(data), some)


WHOLE = [
    (language, page)
    for language, (_, pages) in TEXTS.items()
    for page in pages
    if page not in ("iso8859_16", "iso2022_jp")
]


@pytest.mark.parametrize(("language", "page"), WHOLE)
def test_a_whole_text_is_read(language: str, page: str) -> None:
    text = vietnamese(TEXTS[language][0]) if language == "vi" else TEXTS[language][0]
    try:
        data = text.encode(page)
    except UnicodeEncodeError:
        pytest.skip(f"{page} lacks a character of this text")
    guess = guess_encoding(data)
    if language == "lt":
        assert any(
            reads(data, name, text) for name in guess.alternatives
        )  # two lines of it look Western: the right one is named
    else:
        assert reads(data, guess.encoding, text), guess
    garbled = {data.decode(other, "replace") for other in ("cp1252", "cp437", "koi8_r")} - {text}
    assert all(misplaced(text) <= misplaced(g) for g in garbled if "\ufffd" not in g)


def test_a_guess_is_reported_and_settled_by_encoding(tmp_path) -> None:
    sure, short = TEXTS["de"][0], "Насос."
    (tmp_path / "sure.txt").write_bytes(sure.encode("cp850"))
    (tmp_path / "short.txt").write_bytes(short.encode("cp1251"))
    (tmp_path / "notes.md").write_bytes(f"# {short}\n\n{short}".encode("cp1251"))
    (tmp_path / "rows.csv").write_bytes(f"id,text\n1,{short}\n2,{short}".encode("cp1251"))
    (tmp_path / "rows.jsonl").write_bytes(f'{{"text": "{short}"}}\n'.encode("cp1251"))
    corpus = load_corpus(tmp_path)
    assert corpus["sure.txt"].text == sure
    assert sorted(e.source for e in corpus.errors) == ["notes.md", "rows.csv", "rows.jsonl", "short.txt"]
    assert all(
        "loaded as cp1251, which is a guess: mac-cyrillic may be right as well" in e.reason
        and "encoding='…'" in e.reason
        for e in corpus.errors
    )
    assert "0 refused, 4 in doubt" in repr(corpus)
    told = load_corpus(tmp_path, encoding="cp1251")
    assert not told.errors and told["short.txt"].text == short


def test_escapes_of_iso_2022_are_no_text(tmp_path) -> None:
    text = TEXTS["ja"][0]
    (tmp_path / "a.txt").write_bytes(text.encode("iso2022_jp"))
    assert load_corpus(tmp_path)["a.txt"].text == text
