"""Languages that are looked up word by word; where two claim a word for different intents, the first has it."""

from __future__ import annotations

from endcast.predictors.text.language import Language

SPACED_LANGUAGES: tuple[Language, ...] = (
    Language(
        name="English",
        numbers="one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty thirty=30 forty=40 fifty=50 hundred=100 dozen=12 couple=2 single=1",
        articles="a an",
        items="item* example* idea* way ways reason* tip tips thing things fact facts question questions name names "
        "step steps point* bullet* title titles option* suggestion* recommendation* recipe* book books movie movies "
        "song songs place places quote quotes benefit* advantage* disadvantage* difference* similarit* activit* "
        "strateg* method* technique* topic topics headline* slogan* joke jokes factor* feature* pros cons keyword* "
        "synonym* countries cities",
        sentences="sentence*",
        words="word words",
        paragraphs="paragraph*",
        lines="line lines verse verses",
        characters="character characters char chars letters",
        asks="list name give top write suggest provide generate create recommend find identify tell propose mention",
        not_items="minute* hour hours day days week* month* year* second seconds people person persons st nd rd th "
        "dollar* percent page pages mile miles meter* feet foot inch* gram grams pound* kg km am pm x times grade "
        "star stars player* ingredient* d and or",
        yes_or_no="yes or no,yes no,true or false,answer yes,say yes",
        brief="brief,briefly,concise,concisely,in short,shortly,short answer,keep it short,tl dr,tldr,one word,"
        "just the answer,only the answer,succinct,succinctly,quick summary,short,answer only,nothing else,"
        "only output,no explanation",
        detailed="in detail,detailed,step by step,comprehensive,in depth,thorough,thoroughly,elaborate,essay,long,"
        "as much as possible,extensive,complete guide,full,article,blog post,report,think carefully,"
        "explain your reasoning",
        code="python,javascript,typescript,java,sql,html,css,bash,regex,code,function,script,program,algorithm,c,"
        "rust,golang,kotlin,php,matlab,latex,react,dockerfile,api",
        structured="json,csv,xml,yaml,table,tabular,spreadsheet,markdown table",
        listed="list,bullet points,bullet point,bullets,bulleted,numbered list,steps,examples,ideas,ways,tips,"
        "outline,recipe,ingredients,pros and cons,reasons",
        intents="what: what what's whats; how: how; why: why; who: who whom whose; when: when; where: where; which: "
        "which; polar: is are was were do does did can could should would will has have am isn't aren't doesn't; "
        "list: list name enumerate; give: give provide suggest recommend show tell find need; write: write compose "
        "draft; create: create generate make design develop build come produce plan; explain: explain discuss "
        "analyze analyse teach elaborate; describe: describe define outline; compare: compare contrast difference "
        "differences; summarize: summarize summarise summary; translate: translate translation; rewrite: rewrite "
        "edit rephrase paraphrase proofread correct fix improve convert change; classify: classify identify "
        "categorize extract label choose select determine detect rank sort; solve: solve calculate compute evaluate "
        "prove count",
    ),
    Language(
        name="Spanish",
        numbers="uno dos tres cuatro cinco seis siete ocho nueve diez doce=12 quince=15 veinte=20 treinta=30 "
        "cincuenta=50 cien=100 una=1",
        articles="un una",
        items="ejemplo* idea* forma* manera* razon razones razón consejo* cosa cosas dato datos pregunta* nombre* "
        "paso pasos punto* título* titulo* opcion* opción receta* libro* película* lugar* ventaja* desventaja* "
        "diferencia*",
        sentences="frase frases oración oraciones oracion",
        words="palabra palabras",
        paragraphs="párrafo* parrafo*",
        lines="línea* linea* verso versos",
        characters="carácter caracteres caracter letras",
        asks="lista enumera nombra da dame escribe sugiere dime genera crea menciona top proporciona",
        not_items="minuto* hora horas día* dia dias semana* mes meses año* persona* página* y o",
        yes_or_no="sí o no,si o no,verdadero o falso",
        brief="brevemente,breve,en resumen,respuesta corta,conciso,concisa,corto,corta,en pocas palabras",
        detailed="en detalle,detallado,detallada,detalladamente,paso a paso,ensayo,artículo,exhaustivo,completo",
        code="código,codigo,programa,función en,algoritmo",
        structured="tabla,en formato json",
        listed="lista,una lista,viñetas,pasos,ejemplos,ideas,consejos",
        intents="what: qué cuál cuáles; how: cómo; why: porqué; who: quién quiénes; when: cuándo; where: dónde; "
        "list: enumera nombra; give: dame dime proporciona sugiere recomienda; write: escribe redacta escribir; "
        "create: crea genera diseña haz; explain: explica explícame analiza; describe: describe define; compare: "
        "compara; summarize: resume resumir; translate: traduce traducir; rewrite: reescribe corrige mejora; solve: "
        "calcula resuelve",
    ),
    Language(
        name="French",
        numbers="un deux trois quatre cinq six sept huit neuf dix onze douze quinze=15 vingt=20 trente=30 "
        "cinquante=50 cent=100 une=1 dizaine=10",
        articles="un une",
        items="exemple* idée* façon* manière* raison* conseil* chose* fait faits question* nom noms étape* point "
        "points titre* option* suggestion* recette* livre* film films lieu lieux avantage* inconvénient* "
        "différence*",
        sentences="phrase phrases",
        words="mot mots",
        paragraphs="paragraphe*",
        lines="ligne* vers",
        characters="caractère* lettres signes",
        asks="liste listez cite citez donne donnez nomme écris écrivez propose proposez énumère suggère top",
        not_items="minute* heure* jour jours semaine* mois an ans année* personne* page pages et ou",
        yes_or_no="oui ou non,vrai ou faux",
        brief="brièvement,bref,brève,en bref,en résumé,court,courte,concis,concise,en quelques mots",
        detailed="en détail,détaillé,détaillée,étape par étape,dissertation,approfondi,exhaustif,article",
        code="une fonction,un programme,algorithme",
        structured="tableau,au format json",
        listed="liste,une liste,puces,étapes,exemples,idées,conseils",
        intents="what: quel quelle quels quelles quoi qu; how: comment combien; why: pourquoi; who: qui; when: "
        "quand; where: où; polar: est; list: listez énumère énumérez cite citez; give: donne donnez propose "
        "proposez suggère montre; write: écris écrivez rédige rédigez écrire; create: crée créez génère faites "
        "fais; explain: explique expliquez analyse; describe: décris décrivez définis; compare: comparez; "
        "summarize: résume résumez résumer; translate: traduis traduisez traduire; rewrite: réécris reformule "
        "corrige corrigez améliore; solve: calcule calculez résous",
    ),
    Language(
        name="German",
        numbers="eins zwei drei vier fünf sechs sieben acht neun zehn zwölf=12 fünfzehn=15 zwanzig=20 dreißig=30 "
        "dreissig=30 fünfzig=50 hundert=100 einem=1 einen=1",
        articles="ein eine einem einen einer",
        items="beispiel* idee* möglichkeit* weg wege grund gründe* tipp* ding dinge tatsache* fakt fakten frage* "
        "name namen schritt* punkt* titel option* vorschlag vorschläge* rezept* buch bücher* film filme* ort orte "
        "vorteil* nachteil* unterschied*",
        sentences="satz sätze*",
        words="wort worte* wörter*",
        paragraphs="absatz absätze*",
        lines="zeile*",
        characters="zeichen buchstaben",
        asks="nenne nennen liste gib schreibe schreib top zähle erstelle schlage finde",
        not_items="minute* stunde* tag tage tagen woche* monat* jahr* person* seite* uhr und oder",
        yes_or_no="ja oder nein,wahr oder falsch,richtig oder falsch",
        brief="kurz,kurze,kurzer,kurzen,knapp,in kürze,stichpunktartig,kurz gesagt",
        detailed="ausführlich,ausführliche,detailliert,im detail,schritt für schritt,aufsatz,umfassend,artikel",
        code="quellcode,eine funktion,programmiere,algorithmus",
        structured="tabelle,als tabelle,im json format",
        listed="liste,aufzählung,stichpunkte,schritte,beispiele,ideen,tipps",
        intents="what: welche welcher welches; how: wie wieviel; why: warum wieso weshalb; who: wer; when: wann; "
        "where: wo; polar: ist sind kann soll; list: nenne aufzählen; give: gib zeige; write: schreibe schreib "
        "verfasse; create: erstelle generiere entwirf; explain: erkläre erklär analysiere; describe: beschreibe "
        "definiere; compare: vergleiche; summarize: zusammenfassen fasse; translate: übersetze übersetzen; rewrite: "
        "umschreiben korrigiere verbessere; solve: berechne löse",
    ),
    Language(
        name="Portuguese",
        numbers="um dois três quatro cinco seis sete oito nove dez doze=12 quinze=15 vinte=20 trinta=30 cem=100 "
        "uma=1 duas=2",
        articles="um uma",
        items="exemplo* ideia* forma* maneira* razão razões motivo* dica* coisa* fato fatos pergunta* nome nomes "
        "passo* ponto* título* opção opções sugest* receita* livro* filme* lugar* vantage* diferença*",
        sentences="frase frases sentença*",
        words="palavra palavras",
        paragraphs="parágrafo*",
        lines="linha linhas verso versos",
        characters="caractere* letras",
        asks="liste cite dê escreva sugira gere crie top mencione me",
        not_items="minuto* hora horas dia dias semana* mês meses ano anos pessoa* página* e ou",
        yes_or_no="sim ou não,verdadeiro ou falso",
        brief="brevemente,breve,em resumo,resposta curta,conciso,curto,curta",
        detailed="em detalhe,em detalhes,detalhado,detalhada,detalhadamente,passo a passo,redação,artigo,completo",
        code="função em,um programa,algoritmo",
        structured="tabela,em formato json",
        listed="lista,uma lista,tópicos,passos,exemplos,ideias,dicas",
        intents="what: qual quais; how: como; who: quem; when: quando; where: onde; list: liste; give: dê sugira "
        "mostre; write: escreva redija escrever; create: crie gere faça; explain: explique analise; describe: "
        "descreva defina; summarize: resuma resumir; translate: traduza traduzir; rewrite: reescreva corrija "
        "melhore; solve: calcule resolva",
    ),
    Language(
        name="Italian",
        numbers="uno due tre quattro cinque sei sette otto nove dieci dodici=12 quindici=15 venti=20 trenta=30 "
        "cento=100 una=1",
        articles="un una un'",
        items="esempio esempi idea idee modo modi ragion* motiv* consigl* cosa cose fatto fatti domand* nome nomi "
        "passo passi punto punti titol* opzion* ricett* libr* film luogh* vantagg* differenz*",
        sentences="frase frasi",
        words="parola parole",
        paragraphs="paragraf*",
        lines="riga righe verso versi",
        characters="caratter* lettere",
        asks="elenca dammi scrivi suggerisci genera crea top nomina cita",
        not_items="minut* ora ore giorn* settiman* mese mesi anno anni person* pagin* e o",
        yes_or_no="sì o no,si o no,vero o falso",
        brief="brevemente,breve,in breve,conciso,sintetico,corto,corta",
        detailed="in dettaglio,dettagliato,dettagliata,passo dopo passo,saggio,articolo,completo,approfondito",
        code="codice,una funzione,un programma,algoritmo",
        structured="tabella,in formato json",
        listed="elenco,lista,punti elenco,passaggi,esempi,idee,consigli",
        intents="what: quale quali cosa; why: perché; who: chi; where: dove; list: elenca; give: dammi suggerisci "
        "mostra; write: scrivi scrivere; create: crea genera; explain: spiega spiegami analizza; describe: descrivi "
        "definisci; compare: confronta; summarize: riassumi; translate: traduci; rewrite: riscrivi correggi "
        "migliora; solve: calcola risolvi",
    ),
    Language(
        name="Dutch",
        numbers="één twee drie vier vijf zes zeven acht negen tien twaalf=12 vijftien=15 twintig=20 honderd=100",
        articles="een",
        items="voorbeeld* idee* manier* reden* tip tips ding dingen feit feiten vraag vragen naam namen stap "
        "stappen punt* titel* optie* recept* boek* plaats* voordelen nadelen",
        sentences="zin zinnen",
        words="woord woorden",
        paragraphs="alinea* paragra*",
        lines="regel regels",
        characters="teken tekens letters",
        asks="noem geef schrijf top lijst bedenk",
        not_items="minuten minuut uur dag dagen week weken maand* jaar personen pagina* en of",
        yes_or_no="ja of nee,waar of onwaar",
        brief="kort,korte,beknopt,in het kort",
        detailed="gedetailleerd,in detail,stap voor stap,uitgebreid,uitgebreide",
        structured="tabel",
        listed="lijst,opsomming,stappen,voorbeelden",
        intents="what: wat; how: hoe; why: waarom; when: wanneer; where: waar; list: noem; give: geef; write: "
        "schrijf; create: maak bedenk; explain: leg; describe: beschrijf; summarize: vat; translate: vertaal; "
        "solve: bereken",
    ),
    Language(
        name="Polish",
        numbers="jeden dwa trzy cztery pięć sześć siedem osiem dziewięć dziesięć dwanaście=12 piętnaście=15 "
        "dwadzieścia=20 sto=100 jednym=1 jednej=1 dwóch=2 trzech=3 czterech=4 pięciu=5",
        items="przykład* pomysł* sposob* powod* powód wskazów* rzecz* fakt* pytan* nazw* krok* punkt* tytuł* opcj* "
        "przepis* książ*",
        sentences="zdani* zdań",
        words="słow* słów",
        paragraphs="akapit*",
        lines="wers* linij* linii",
        characters="znak*",
        asks="wymień podaj napisz wypisz top zaproponuj",
        not_items="minut* godzin* dni dzień tygodni* miesi* lat lata rok osob* osób stron* i lub",
        yes_or_no="tak lub nie,tak czy nie,prawda czy fałsz",
        brief="krótko,krótki,krótka,zwięźle,w skrócie",
        detailed="szczegółowo,szczegółowy,krok po kroku,wyczerpująco,esej,artykuł",
        structured="tabela,tabeli,tabelę",
        listed="lista,listę,wypunktuj,kroki,przykłady",
        intents="what: jaki jaka jakie; how: jak ile; why: dlaczego; who: kto; when: kiedy; where: gdzie; polar: "
        "czy; list: wymień wypisz; give: podaj zaproponuj; write: napisz; create: stwórz; explain: wyjaśnij "
        "wytłumacz; describe: opisz; compare: porównaj; summarize: streść podsumuj; translate: przetłumacz; "
        "rewrite: popraw; solve: oblicz rozwiąż",
    ),
    Language(
        name="Russian",
        numbers="один два три четыре пять шесть семь восемь девять десять двенадцать=12 пятнадцать=15 двадцать=20 "
        "тридцать=30 сто=100 одно=1 одном=1 одна=1 одной=1 одним=1 две=2 двух=2 двумя=2 трёх=3 трех=3 тремя=3 "
        "четырёх=4 четырех=4 пяти=5 шести=6 семи=7 восьми=8 девяти=9 десяти=10",
        items="пример* иде* способ* причин* совет* вещ* факт* вопрос* назван* имён имен имени шаг* пункт* заголов* "
        "вариант* рецепт* книг* фильм* мест* преимуществ* недостатк* отличи*",
        sentences="предложени* фраз*",
        words="слов* слова",
        paragraphs="абзац*",
        lines="строк* строчк*",
        characters="символ* знак* букв*",
        asks="перечисли назови приведи напиши дай топ предложи составь перечислите назовите приведите напишите "
        "дайте предложите",
        not_items="минут* час* день дней дня недел* месяц* год* лет человек людей страниц* и или",
        yes_or_no="да или нет,верно или неверно,правда или ложь",
        brief="кратко,коротко,вкратце,краткий,краткое,одним словом,сжато",
        detailed="подробно,подробный,подробное,детально,пошагово,шаг за шагом,развёрнуто,эссе,сочинение,статью,"
        "статья,полный",
        code="код,функцию,программу,скрипт,алгоритм",
        structured="таблица,таблицу,таблицы,таблице,в формате json",
        listed="список,списком,по пунктам,шаги,примеры,идеи,советы",
        intents="what: что какой какая какое какие каков; how: как сколько; why: почему зачем; who: кто; when: "
        "когда; where: где куда; polar: является можно; list: перечисли назови перечислите назовите; give: дай "
        "приведи предложи покажи дайте приведите предложите; write: напиши напишите написать сочини; create: создай "
        "придумай составь создайте; explain: объясни расскажи объясните расскажите проанализируй; describe: опиши "
        "опишите определи; compare: сравни сравните; summarize: резюмируй перескажи; translate: переведи "
        "переведите; rewrite: перепиши исправь улучши; classify: классифицируй выбери; solve: реши вычисли посчитай "
        "решите",
    ),
    Language(
        name="Turkish",
        numbers="bir iki üç dört beş altı yedi sekiz dokuz on yirmi=20 otuz=30 elli=50 yüz=100",
        items="örnek* fikir* fikri yol yollar* neden* ipucu* şey* gerçek* soru* isim* adım* madde* başlık* seçenek* "
        "öneri* tarif* kitap* film*",
        sentences="cümle*",
        words="kelime* sözcük*",
        paragraphs="paragraf*",
        lines="satır* dize*",
        characters="karakter* harf*",
        asks="listele say yaz öner ver",
        not_items="dakika* saat* gün* hafta* ay yıl* kişi* sayfa*",
        yes_or_no="evet mi hayır mı,evet veya hayır,evet ya da hayır,doğru mu yanlış mı",
        brief="kısaca,kısa,özetle,özet",
        detailed="ayrıntılı,detaylı,adım adım,kapsamlı,makale",
        structured="tablo,tablosu",
        listed="liste,listele,madde madde,adımlar,örnekler",
        intents="what: ne nedir hangi; how: nasıl kaç; why: neden niçin niye; who: kim kimdir; where: nerede; list: "
        "listele sırala; give: ver öner; write: yaz; create: oluştur; explain: açıkla anlat; describe: tanımla; "
        "compare: karşılaştır; summarize: özetle; translate: çevir; solve: hesapla çöz",
    ),
    Language(
        name="Vietnamese",
        numbers="một hai ba bốn năm sáu bảy tám chín mười",
        items="ví ý cách lý mẹo điều tên bước điểm",
        sentences="câu",
        words="từ chữ",
        paragraphs="đoạn",
        lines="dòng",
        characters="ký",
        asks="kê cho viết nêu",
        not_items="phút giờ ngày tuần tháng người trang",
        yes_or_no="có hay không,đúng hay sai",
        brief="ngắn gọn,ngắn,tóm tắt",
        detailed="chi tiết,từng bước,đầy đủ,bài luận",
        structured="bảng",
        listed="danh sách,liệt kê",
        intents="what: gì; how: nào; why: sao; write: viết; explain: giải; translate: dịch",
    ),
    Language(
        name="Indonesian",
        numbers="satu dua tiga empat lima enam tujuh delapan sembilan sepuluh",
        items="contoh ide cara alasan tips hal fakta pertanyaan nama langkah poin judul saran resep buku",
        sentences="kalimat",
        words="kata",
        paragraphs="paragraf",
        lines="baris",
        characters="karakter huruf",
        asks="sebutkan berikan tulis buatkan buat tuliskan daftar",
        not_items="menit jam hari minggu bulan tahun orang halaman",
        yes_or_no="ya atau tidak,benar atau salah",
        brief="singkat,ringkas,secara singkat",
        detailed="rinci,secara rinci,langkah demi langkah,lengkap,esai,artikel",
        structured="tabel",
        listed="daftar,langkah langkah,contoh",
        intents="what: apa; how: bagaimana; why: mengapa kenapa; who: siapa; when: kapan; where: dimana mana; "
        "polar: apakah; list: sebutkan; give: berikan; write: tulis tuliskan; create: buat buatkan; explain: "
        "jelaskan; describe: deskripsikan; translate: terjemahkan; solve: hitung",
    ),
    Language(
        name="Arabic",
        numbers="واحد اثنين ثلاث أربع خمس ست سبع ثمان تسع عشر ثلاثة=3 أربعة=4 خمسة=5 ستة=6 سبعة=7 ثمانية=8 تسعة=9 "
        "عشرة=10 ثماني=8 عشرين=20",
        items="أمثلة مثال أفكار فكرة طرق أسباب نصائح أشياء حقائق أسئلة أسماء خطوات خطوة نقاط عناوين خيارات وصفات "
        "كتب فوائد",
        sentences="جملة جمل",
        words="كلمة كلمات",
        paragraphs="فقرة فقرات",
        lines="سطر أسطر سطور",
        characters="حرف حرفا أحرف حروف",
        asks="اذكر اكتب أعطني اقترح عدد قائمة",
        not_items="دقيقة دقائق ساعة ساعات يوم أيام أسبوع شهر سنة سنوات شخص أشخاص صفحة",
        yes_or_no="نعم أو لا,نعم أم لا,صح أم خطأ,صواب أو خطأ",
        brief="باختصار,بإيجاز,مختصر,قصير,قصيرة",
        detailed="بالتفصيل,مفصل,مفصلة,خطوة بخطوة,مقال,مقالة,شامل",
        code="كود,برنامج,دالة,خوارزمية",
        structured="جدول,جدولا",
        listed="قائمة,نقاط,خطوات,أمثلة",
        intents="what: ما ماذا ماهو; how: كيف كم; why: لماذا; who: من; when: متى; where: أين; which: أي; polar: هل; "
        "list: عدد اذكر; give: أعطني اقترح; write: اكتب; create: أنشئ; explain: اشرح; describe: صف عرف; compare: "
        "قارن; summarize: لخص; translate: ترجم; solve: احسب",
    ),
    Language(
        name="Hindi",
        numbers="एक दो तीन चार पाँच छह सात आठ नौ दस पांच=5 बीस=20 सौ=100",
        items="उदाहरण विचार तरीके कारण सुझाव बातें तथ्य प्रश्न सवाल नाम कदम बिंदु",
        sentences="वाक्य वाक्यों",
        words="शब्द शब्दों",
        paragraphs="पैराग्राफ अनुच्छेद",
        lines="पंक्ति पंक्तियाँ पंक्तियों",
        characters="अक्षर अक्षरों",
        asks="लिखिए लिखो बताइए बताओ दीजिए",
        not_items="मिनट घंटे दिन सप्ताह महीने साल लोग पृष्ठ",
        yes_or_no="हाँ या नहीं,हां या नहीं,सही या गलत",
        brief="संक्षेप,संक्षिप्त,छोटा",
        detailed="विस्तार,विस्तृत,निबंध,लेख",
        structured="तालिका",
        listed="सूची",
        intents="what: क्या; how: कैसे कितने; why: क्यों; who: कौन; when: कब; where: कहाँ",
    ),
)
