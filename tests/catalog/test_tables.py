"""The tables of search: what they hold, how quickly they load, and what a damaged file costs."""

import hashlib
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from bench.search_quality import unasked

from clawmode.catalog import search, tables
from clawmode.catalog.catalog import Catalog
from clawmode.catalog.search import Document, Ranker, SearchIndex
from clawmode.catalog.vectors import VectorRanker
from clawmode.tools.tool import Tool

# A new build has other hashes: write what `scripts/build_search_tables.py` prints.
HASHES = {
    tables.RELATED: "3bf958645d3a5da31f7d8ec5a7541c0f5ad046c5ea278242bb6895db51e69f10",
    tables.VECTORS: "6862ca99b4368ddebc27e966099783f42497b07ebbeac1b5ffb57d86ec04da51",
}


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Nothing has been loaded yet, and what this test loads is not kept."""
    tables.load_related.cache_clear()
    yield
    tables.load_related.cache_clear()


def related() -> tables.RelatedTable:
    found = tables.load_related()
    assert found is not None
    return found


def test_the_files_are_those_that_the_script_made() -> None:
    for name, expected in HASHES.items():
        data = (tables.FOLDER / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == expected


def test_every_row_of_the_related_words_is_sound() -> None:
    table = related()
    assert table.stems == sorted(set(table.stems))
    assert len(table.ends) == len(table.stems) > 15_000
    assert len(table.places) == len(table.cosines) == table.ends[-1]
    assert max(table.places) < len(table.stems)
    for stem in table.stems[::97]:
        found = table.of(stem)
        assert stem not in dict(found)
        assert len(dict(found)) == len(found) <= 20
        cosines = [cosine for _, cosine in found]
        assert cosines == sorted(cosines, reverse=True)
        assert all(0.34 < cosine <= 1 for cosine in cosines)


def test_words_of_the_same_meaning_are_related_and_others_are_not() -> None:
    table = related()
    assert "mail" in dict(table.of("email"))
    assert "imag" in dict(table.of("photo"))
    assert table.of("xqzvk") == table.of("") == table.of("the") == []


def test_the_vectors_belong_to_the_related_words() -> None:
    table = related()
    made = tables.read_vectors(tables.FOLDER / tables.VECTORS, table)
    assert len(made.factors) == len(table.stems)
    assert len(made.values) == len(table.stems) * made.columns


def test_the_tables_load_in_fifty_milliseconds() -> None:
    """Of processor time, and the best of five: the machine is shared."""
    spent: list[float] = []
    for _ in range(5):
        began = time.process_time()
        table = tables.read_related(tables.FOLDER / tables.RELATED)
        tables.read_vectors(tables.FOLDER / tables.VECTORS, table)
        spent.append(time.process_time() - began)
    assert min(spent) < 0.05


@pytest.mark.hostile
@pytest.mark.parametrize("at", [0, 9, 20, 60, 400_000])
def test_a_file_with_one_changed_byte_is_rejected(at: int, tmp_path: Path) -> None:
    data = bytearray((tables.FOLDER / tables.RELATED).read_bytes())
    data[at] ^= 1
    (tmp_path / "changed.bin").write_bytes(data)
    with pytest.raises(tables.BadTable, match=r"changed\.bin"):
        tables.read_related(tmp_path / "changed.bin")


def test_vectors_of_other_related_words_are_rejected(tmp_path: Path) -> None:
    other = related()._replace(digest=bytes(32))
    with pytest.raises(tables.BadTable, match="made for another"):
        tables.read_vectors(tables.FOLDER / tables.VECTORS, other)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("content", [None, b"", b"clawmode" + bytes(60)])
def test_without_its_table_search_goes_by_words_alone_and_says_so_once(
    content: bytes | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if content is not None:
        (tmp_path / tables.RELATED).write_bytes(content)
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    run = lambda given, context: None  # noqa: E731 - nobody calls it
    tools = [Tool("delete_path", "Remove a file or folder", {}, run)]
    with caplog.at_level(logging.ERROR, "clawmode.search"):
        for _ in range(2):
            catalog = Catalog(tools)
            assert catalog.search("erase a directory", 8) == []
            assert len(catalog.search("remove a folder", 8)) == 1
    assert len(caplog.records) == 1


# What related words may and may not do


def test_a_word_itself_comes_before_its_relatives() -> None:
    among = [Document("send_mail"), Document("send_email"), Document("send_letter")]
    found = SearchIndex(among, related()).search("email", 8)
    assert [among[position].name for position, _ in found][:2] == ["send_email", "send_mail"]


def test_the_same_documents_give_the_same_order_in_every_process() -> None:
    code = """
from bench.search_quality import read_asked, unasked
from clawmode.catalog.search import SearchIndex
from clawmode.catalog.tables import load_related
from itertools import islice
tools, asked = read_asked()
index = SearchIndex([*tools, *islice(unasked(), 500)], load_related())
print([index.search(request.text, 8) for request in asked["hints"]])
"""
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            timeout=20,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


# Texts of strangers

SANE = [
    Document("issue_refund", "", "Return a charge to the customer's card"),
    Document("send_email", "", "Send a message to an address"),
    Document("resize_image", "", "Change the dimensions of a picture"),
    Document("get_forecast", "", "Weather of the coming days at a place"),
]
ASKED = ["refund a charge", "email a message", "photo dimensions", "will it rain at my place"]


@pytest.mark.hostile
def test_a_tool_that_lists_every_word_does_not_win() -> None:
    words = " ".join(related().stems)
    greedy = [Document("best_tool", "", words), Document("other", "", "", "", "", words)]
    greedy += [Document(words.replace(" ", "_"), words, words)]
    index = SearchIndex([*greedy, *SANE], related())
    for number, query in enumerate(ASKED):
        assert index.search(query, 8)[0][0] == len(greedy) + number


@pytest.mark.hostile
def test_a_megabyte_of_text_costs_no_more_than_its_beginning() -> None:
    huge = "refund email photo rain " * 40_000
    began = time.process_time()
    index = SearchIndex([*[Document(huge, huge, huge, huge, huge, huge)] * 20, *SANE], related())
    for query in (huge, huge.replace(" ", ""), "and " * 250_000, ". a" * 300_000, *ASKED):
        index.search(query, 8)
    assert time.process_time() - began < 2
    assert index.search("refund a charge", 1)[0][0] == 20


@pytest.mark.hostile
def test_letters_that_only_look_alike_are_other_words() -> None:
    fake = Document(
        "issue_r\u0435fund", "", "R\u0435turn a ch\u0430rge to the customer's c\u0430rd"
    )
    index = SearchIndex([fake, *SANE], related())
    assert index.search("refund a charge", 8)[0][0] == 1


# Thresholds


def test_what_no_tool_does_gets_no_answer_and_a_hint_gets_a_weak_one() -> None:
    index = SearchIndex(SANE, related())
    assert index.search("feed the goldfish", 8) == []
    assert index.strength("feed the goldfish") < search.MIN_STRENGTH
    assert index.strength("return a charge") == 1.0
    assert 0 <= index.strength("") <= 1


# Other languages: the tables are made for English, and must not make others worse

TRANSLATED = {
    "de": """
rechnung_erstellen: Erstellt eine Rechnung für einen Kunden = neue Rechnung für den Kunden
zahlung_erstatten: Zahlt einem Kunden das Geld zurück = dem Kunden sein Geld erstatten
nachricht_senden: Sendet eine Nachricht an eine Adresse = eine Nachricht an Anna senden
datei_lesen: Liest den Inhalt einer Datei = was steht in dieser Datei
ordner_anlegen: Legt einen neuen Ordner an = einen Ordner für Fotos anlegen
wetter_abfragen: Wetter der nächsten Tage an einem Ort = wie wird das Wetter morgen
termin_eintragen: Trägt einen Termin in den Kalender ein = Termin beim Arzt in den Kalender
bild_verkleinern: Ändert die Größe eines Bildes = das Bild ist zu groß
""",
    "es": """
crear_factura: Crea una factura para un cliente = nueva factura para el cliente
reembolsar_pago: Devuelve el dinero a un cliente = devuelve el dinero de la compra
enviar_mensaje: Envía un mensaje a una dirección = enviar un mensaje a Ana
leer_archivo: Lee el contenido de un archivo = qué dice este archivo
crear_carpeta: Crea una carpeta nueva = una carpeta para las fotos
consultar_clima: El clima de los próximos días en un lugar = qué clima hará mañana
agendar_cita: Añade una cita al calendario = cita con el médico en el calendario
reducir_imagen: Cambia el tamaño de una imagen = la imagen es de gran tamaño
""",
    "fr": """
creer_facture: Crée une facture pour un client = une nouvelle facture pour le client
rembourser_paiement: Rend son argent à un client = rendre l'argent au client
envoyer_message: Envoie un message à une adresse = envoyer un message à Anne
lire_fichier: Lit le contenu d'un fichier = que dit ce fichier
creer_dossier: Crée un nouveau dossier = un dossier pour les photos
consulter_meteo: La météo des prochains jours dans un lieu = quelle météo demain
ajouter_rendez_vous: Ajoute un rendez-vous au calendrier = rendez-vous chez le médecin
reduire_image: Change la taille d'une image = la taille de l'image est trop grande
""",
    "zh": """
创建发票: 为客户创建发票 = 给客户开新发票
发送消息: 向地址发送消息 = 给安娜发送消息
读取文件: 读取文件的内容 = 这个文件里有什么
查询天气: 某地未来几天的天气 = 明天天气怎么样
""",
}


@pytest.mark.parametrize("language", TRANSLATED)
def test_another_language_is_searched_no_worse_than_by_words_alone(language: str) -> None:
    requests: list[tuple[str, int]] = []
    among: list[Document] = []
    for number, line in enumerate(TRANSLATED[language].strip().splitlines()):
        head, request = line.split(" = ")
        name, description = head.split(": ")
        among.append(Document(name, "", description))
        requests.append((request, number))
    english = list(islice(unasked(), 300))
    alone = SearchIndex([*among, *english])
    words = SearchIndex([*among, *english], related())
    both = VectorRanker([*among, *english], words)

    def firsts(ranker: Ranker) -> int:
        found = [(ranker.search(query, 1), right) for query, right in requests]
        return sum([position for position, _ in hits] == [right] for hits, right in found)

    assert firsts(alone) >= len(requests) * 0.7
    assert firsts(words) >= firsts(alone)
    assert firsts(both) >= firsts(alone)
