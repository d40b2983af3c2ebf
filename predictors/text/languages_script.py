"""Languages that are looked for inside the text; the first applies whose script the text has."""

from __future__ import annotations

from endcast.predictors.text.language import Language

SCRIPT_LANGUAGES: tuple[Language, ...] = (
    Language(
        name="Korean",
        script="\uac00-\ud7af",
        numbers="한 두 세 네 다섯 여섯 일곱 여덟 아홉 열 하나=1 둘=2 셋=3 넷=4 스무=20 백=100",
        not_before="\\w",
        counters="개의 가지",
        items="가지 개 항목 예시 단계 권 편",
        sentences="문장",
        words="단어",
        paragraphs="문단 단락",
        lines="줄 행",
        characters="글자 자",
        not_items="월 명 년 시간 개월",
        yes_or_no="예 또는 아니오,예 아니오,네 아니오,맞나요 틀리나요",
        brief="간단히,간단하게,짧게,간략,요약",
        detailed="자세히,자세하게,상세,단계별,구체적,에세이,기사",
        code="코드,함수,프로그램,스크립트,알고리즘",
        structured="표로,표를,테이블,json 형식",
        listed="목록,나열,리스트,단계,예시",
        intents="list: 나열 목록; translate: 번역; summarize: 요약; rewrite: 고쳐 수정 다시; compare: 비교 차이; classify: 분류; "
        "solve: 계산 풀어; explain: 설명; describe: 묘사 정의 소개; why: 왜; how: 어떻게 얼마; what: 무엇 뭐; who: 누가 누구; when: "
        "언제; where: 어디; which: 어느; write: 써줘 작성; create: 만들; give: 알려 추천; polar: 인가요 나요",
    ),
    Language(
        name="Japanese",
        script="\u3041-\u30ff",
        numbers="一 二 三 四 五 六 七 八 九 十 ひと=1 二十=20 百=100",
        not_before="第",
        counters="つの 個の",
        items="つ 個 点 件 選 項目 例 種類 ステップ 冊",
        sentences="文 センテンス",
        words="語 単語",
        paragraphs="段落 パラグラフ",
        lines="行",
        characters="文字 字",
        not_items="人 月 年 時間 分 日 週 点満点",
        yes_or_no="はいかいいえ,正しいか",
        brief="簡潔,短く,簡単に,一言で,手短",
        detailed="詳しく,詳細,ステップバイステップ,段階的,徹底,記事,エッセイ,レポート",
        code="コード,関数,プログラム,スクリプト,アルゴリズム",
        structured="表に,表で,テーブル,json形式",
        listed="リスト,箇条書き,列挙,手順,例を挙げ",
        intents="list: 挙げて リスト 列挙; translate: 翻訳 訳して; summarize: 要約 まとめて; rewrite: 書き直 添削 修正; compare: 比較 違い; "
        "classify: 分類; solve: 計算 解いて; explain: 説明 解説; describe: 定義 紹介; why: なぜ どうして; how: どうやって どのように 方法 "
        "いくつ; what: 何 なに とは; who: 誰; when: いつ; where: どこ; which: どれ どちら; write: 書いて 書く; create: 作って 作成 生成 "
        "考えて; give: 教えて ください; polar: ですか ますか",
    ),
    Language(
        name="Thai",
        script="\u0e00-\u0e7f",
        numbers="หนึ่ง สอง สาม สี่ ห้า หก เจ็ด แปด เก้า สิบ",
        items="ข้อ ตัวอย่าง วิธี อย่าง ขั้นตอน",
        sentences="ประโยค",
        words="คำ",
        paragraphs="ย่อหน้า",
        lines="บรรทัด",
        characters="ตัวอักษร",
        not_items="คน เดือน ปี",
        yes_or_no="ใช่หรือไม่",
        brief="สั้น,โดยย่อ,สรุป",
        detailed="ละเอียด,ทีละขั้นตอน,บทความ",
        code="โค้ด,ฟังก์ชัน,โปรแกรม",
        structured="ตาราง",
        listed="รายการ,ขั้นตอน",
        intents="translate: แปล; summarize: สรุป; explain: อธิบาย; write: เขียน; why: ทำไม; how: อย่างไร ยังไง; "
        "what: อะไร คืออะไร; who: ใคร; where: ที่ไหน",
    ),
    Language(
        name="Chinese",
        script="\u3400-\u9fff",
        numbers="一 二 三 四 五 六 七 八 九 十 两=2 兩=2 十二=12 十五=15 二十=20 三十=30 五十=50 一百=100 两百=200 二百=200 三百=300 五百=500 "
        "八百=800 一千=1000",
        not_before="第",
        counters="个 個",
        items="例子 个 個 条 條 点 點 种 種 项 項 则 首 件 步 道",
        sentences="句子 句话 句話 句",
        words="词 詞 單詞 单词",
        paragraphs="段落 段话 段",
        lines="行",
        characters="字 字符",
        not_items="人 月 小时 小時 星期 年 点钟 點鐘 学生 朋友 孩子",
        yes_or_no="是或否,是还是否,对还是错,是否正确,是不是",
        brief="简短,簡短,简要,簡要,简单,簡單,简洁,簡潔,一句话,精简",
        detailed="详细,詳細,一步一步,逐步,全面,深入,文章,论文,論文,作文",
        code="代码,代碼,函数,程序,脚本,算法,编程,程式",
        structured="表格,列表形式",
        listed="列出,列举,列舉,清单,清單,步骤,步驟,要点,举例",
        intents="list: 列出 列举 列舉; translate: 翻译 翻譯; summarize: 总结 總結 概括 摘要; rewrite: 改写 改寫 润色 修改; compare: 比较 比較 区别 "
        "區別 对比; classify: 分类 分類 判断; solve: 计算 計算 求解 解方程; explain: 解释 解釋 分析 说明 說明; describe: 描述 介绍 介紹 定义; "
        "why: 为什么 為什麼 为何; how: 怎么 怎麼 如何 怎样 怎樣 多少; what: 什么 什麼; who: 谁 誰; when: 什么时候 何时; where: 哪里 哪裡; "
        "which: 哪个 哪些 哪個; write: 写 寫; create: 创建 创作 生成 设计; give: 给我 給我 推荐 推薦 提供; polar: 吗 嗎 是否",
    ),
)
